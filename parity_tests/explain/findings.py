"""What is wrong with one candidate in one case: the first difference, its picture, and what would explain it."""

from dataclasses import dataclass, field

import numpy as np

from parity_tests.judge.judging import Row

# Ratios beyond this say no more than that the two have nothing to do with each other.
FAR = 2.0**40
MOST = 4  # causes that are told


@dataclass(frozen=True)
class Cause:
    """A known mistake that, made in the reference, gives the candidate's numbers.

    Attributes:
        name: the mistake, in words.
        fix: what to change, in one line.
        ratio: largest error/bound of the candidate against the reference with the mistake; at most 1.
        evidence: how it is known.
    """

    name: str
    fix: str
    ratio: float
    evidence: str = "the reference with this mistake gives these numbers, within its bounds"


@dataclass
class Finding:
    """A candidate that differs.

    Attributes:
        candidate, case: who, and in which call.
        first: the first verdict that fails, in dataflow order; every stage before it passes.
        axes: letters of that array's axes, such as "b h t s"; "" where they are not known.
        got, want, bound: the whole array: the candidate's, the reference's on the candidate's own inputs, and how far
            they may be apart.
        causes: the known mistakes that explain it, best first; empty where none does.
        patterns: what the difference looks like, in words, strongest first.
        rows: every verdict of this candidate in this case, in dataflow order.
        after: what else is wrong, where the first cause explains the first difference and not all.
        explains_all: with the causes made the reference gives all of the candidate's numbers.
        next_step: what would show more, where no known mistake explains it.
        theirs: the candidate's own name of the first array, where it is known and another one.
        made_of, goes_into: the names before and behind the first array in the dataflow of the reference.
        hidden: the places of the first array that are not compared, because nothing depends on them.
        failure: what the search for a cause ended in, where it ended in an error of its own.
    """

    candidate: str
    case: str
    first: Row
    axes: str = ""
    got: np.ndarray | None = None
    want: np.ndarray | None = None
    bound: np.ndarray | None = None
    causes: list[Cause] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    after: "Finding | None" = None
    explains_all: bool = False
    next_step: str = ""
    theirs: str = ""
    made_of: list[str] = field(default_factory=list)
    goes_into: list[str] = field(default_factory=list)
    hidden: np.ndarray | None = None
    failure: str = ""


def told(finding: Finding) -> str:
    """A finding in words: where, how much, what it looks like, why."""
    row, theirs = finding.first, f" (yours: {finding.theirs})" if finding.theirs else ""
    lines = [f"{finding.candidate} differs first at {row.stage} {row.name}{theirs}"]
    if row.note:
        lines.append(f"  {row.note}")
    else:
        at = f"{row.index}" + (f" of the axes {finding.axes}" if finding.axes else "")
        lines.append("  got {}, expected {} at {}".format(*told_apart(row.got, row.expected), at))
        far = "far beyond 1" if row.ratio > FAR else f"{row.ratio:.3g}"
        lines.append(f"  error/bound {far}, with a bound of {row.bound:.1g} there")
    before = [r.name for r in finding.rows[: finding.rows.index(row)] if r.stage == "tape"] if finding.rows else []
    if before:
        lines.append(f"  agree before it: {', '.join(before)}")
    for pattern in finding.patterns:
        lines.append(f"  seen: {pattern}")
    lines += why(finding)
    if finding.after is not None:
        later = finding.after.first
        lines.append(f"with this mended it differs next at {later.stage} {later.name}")
        lines += [] if finding.after.causes else [f"  seen: {pattern}" for pattern in finding.after.patterns]
        lines += why(finding.after)
    return "\n".join(lines)


def told_apart(got: float, expected: float) -> tuple[str, str]:
    """Two numbers in words, with four digits or as many as tell them apart."""
    pairs = ((f"{got:.{digits}g}", f"{expected:.{digits}g}") for digits in range(4, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{got:.4g}", f"{expected:.4g}"))


def why(finding: Finding) -> list[str]:
    """The causes in words, or what would show more."""
    lines = []
    for i, cause in enumerate(finding.causes[:MOST]):
        word = "cause" if i == 0 else "fits too"
        lines.append(f"  {word}: {cause.name}")
        if i == 0:
            lines.append(f"  evidence: {cause.evidence}")
            lines.append(f"  fix: {cause.fix}")
    if finding.failure:
        lines.append(f"  cause: the search for a cause failed: {finding.failure}; the verdict stands without it")
    elif not finding.causes:
        lines.append("  cause: none of the known mistakes gives these numbers")
    if finding.next_step:
        lines.append(f"  next: {finding.next_step}")
    return lines
