"""The result of a comparison of modules, and its words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity_tests.explain.findings import Finding, told
from parity_tests.ports.modules.bounds import Distance
from parity_tests.ports.modules.fused import fused
from parity_tests.ports.modules.names import Names, pairs
from parity_tests.ports.modules.recordings import Recording
from parity_tests.ports.modules.rows import Row
from parity_tests.ports.modules.types import types_of
from parity_tests.report.plain import Reported, modules_dict

MOST = 6  # names that are listed


@dataclass
class ModuleComparison(Reported):
    """What two recordings say about each other.

    Attributes:
        a, b: the recordings.
        names: names in a to names in b.
        rows: the submodules that both have, in the order in which those of a end.
        gradients: of the inputs and of the weights.
        only_a, only_b: the submodules that were called on one side alone.
        finding: where the first difference is attention that is known here: what is wrong with it.
        cause: what the first difference's own code computes on each side, in words; "" where that is not known.
        advice: what to do next, in words.
        nan_share: how much of the outputs is NaN on both sides, which says nothing; below 1.
    """

    a: Recording
    b: Recording
    names: Names
    rows: list[Row]
    gradients: list[Row] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    finding: Finding | None = None
    cause: str = ""
    advice: str = ""
    nan_share: float = 0.0

    @property
    def unmatched_weights(self) -> list[str]:
        """The weights that one side has and the other has no place for."""
        found = pairs(self.a, self.b, self.names, need_all=False)
        paired = {pair.a for pair in found}, {pair.b for pair in found}
        for one in list(fused(self.a, self.b, paired)):
            whole, parts = paired if one.side == "a" else paired[::-1]
            whole.add(one.whole)
            parts.update(name for name, _ in one.parts)
        return [
            f"{name} of {side}"
            for side, part, taken in zip("ab", (self.a, self.b), paired, strict=True)
            for name in part.weights
            if name not in taken
        ]

    @property
    def agree(self) -> bool:
        """Whether the modules agree: their outputs, precision and gradients."""
        return not self.differences

    @property
    def differences(self) -> list[Row]:
        """What differs and does not follow from another difference, in the order in which it is computed."""
        found = [row for row in [*self.rows, *self.gradients] if row.verdict in ("differs", "less precise")]
        # Gradients are computed from the end.
        return found[::-1] if any(row.gradients for row in found) else found

    @property
    def first(self) -> Row | None:
        """The first of the differences."""
        return next(iter(self.differences), None)

    def __str__(self) -> str:
        return "\n".join(words(self))

    def as_dict(self) -> dict[str, Any]:
        """Every pair of submodules and gradients, the first difference and the advice."""
        return modules_dict(self)


def inside_of(part: str, whole: str) -> bool:
    """Whether a submodule is another or one of its parts."""
    return not whole or part == whole or part.startswith(f"{whole}.")


def words(result: ModuleComparison) -> Iterator[str]:
    """The comparison in words, line by line."""
    first = result.first
    if first is None:
        yield from agreement(result)
        yield from types(result)
        yield from unseen(result)
        return
    probes = list(dict.fromkeys((result.a.probe, result.b.probe)))
    of_weight = first.places[0] < 0
    what = f"{first.kinds[0]} {first.label}" if of_weight else f"{first.label}: {first.kinds[0]} and {first.kinds[1]}"
    if first.gradients:
        yield f"gradients differ first, walking back, at {what}"
        yield f"  outputs: {far(first.output)}, agree"
    elif first.verdict == "less precise":
        whose = result.a if first.output.less_precise == "a" else result.b
        yield f"mean the same, but {first.output.less_precise} ({whose.who}) is less precise first at {what}"
        yield f"  errors in float32: {first.output.errors[0]:.2g} in a, {first.output.errors[1]:.2g} in b"
    else:
        yield f"differ first at {what}"
        if first.inputs is not None:
            yield f"  inputs: {far(first.inputs)}, agree"
        yield f"  {'gradients' if of_weight else 'outputs'}: {far(first.output)}"
        if first.output.own is not None and first.output.shapes is None:
            yield f"  in {' and '.join(probes)}: {first.output.own:.2g} apart"
    if not first.gradients:
        before = result.rows if of_weight else result.rows[: result.rows.index(first)]
        yield f"  agree before it: {counted(sum(row.verdict == 'agrees' for row in before), 'submodule')}"
    if first.how != "name":
        yield f"  matched by {first.how}; names= makes it sure"
    more = [f"{row.kinds[0]} {row.label}" if row.places[0] < 0 else row.label for row in result.differences[1:]]
    if more:
        yield f"  differ by themselves, too: {some(more)}"
    unsure = [row.label for row in result.rows if row.verdict == "unsure"]
    if unsure:
        yield f"  matched by order alone, and other numbers: {some(unsure)}; names= makes it sure"
    yield from types(result)
    yield from unseen(result)
    if result.finding is not None:
        yield from (f"  {line}" for line in told(result.finding).splitlines())
    if result.cause:
        yield f"  cause: {result.cause}"
    if result.advice:
        yield f"  next: {result.advice}"


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"


def agreement(result: ModuleComparison) -> Iterator[str]:
    """That the two agree, how well, and what was not compared."""
    count = sum(row.places[0] >= 0 for row in result.rows)
    types = list(dict.fromkeys(("float64", result.a.probe, result.b.probe)))
    worst = max([*result.rows, *result.gradients], key=lambda row: row.output.ratio if row.verdict == "agrees" else 0.0)
    yield (
        f"agree: {result.a.who} and {result.b.who}, {counted(count, 'submodule')} and "
        f"{counted(sum(row.output.nan_share < 1 for row in result.gradients), 'gradient')}, in "
        f"{' and '.join(types)}; largest difference/bound {worst.output.ratio:.3g} ({worst.label})"
    )
    odd = [row.label for row in result.rows if row.verdict != "agrees"]
    if odd:
        yield f"  other numbers inside, although the outputs agree: {some(odd)}"


def types(result: ModuleComparison) -> Iterator[str]:
    """In which types each side ran, where that is not float64 and one other for both."""
    told = [list(types_of(name, side)) for name, side in (("a", result.a), ("b", result.b))]
    if any(len(lines) > 1 or "computes" in lines[0] for lines in told) or result.a.probe != result.b.probe:
        yield from (line for lines in told for line in lines)


def unseen(result: ModuleComparison) -> Iterator[str]:
    """Submodules, results and weights without a partner, and what was not compared alone because nothing called it."""
    for side, names in (("a", result.only_a), ("b", result.only_b)):
        if names:
            yield f"  in {side} alone: {some(names)}"
    shapes = [f"{row.label} returns {row.unpaired}" for row in result.rows if row.unpaired]
    if shapes:
        yield f"  not compared, in other shapes: {some(shapes)}"
    if result.unmatched_weights:
        yield f"  no partner: {some(result.unmatched_weights)}"
    for side, recording in (("a", result.a), ("b", result.b)):
        if recording.never_called:
            yield f"  never called in {side}, so seen only in what contains them: {some(recording.never_called)}"
    if result.nan_share:
        yield f"  {result.nan_share:.0%} of the outputs are NaN on both sides, which says nothing"
    lost = [f"{row.output.nan_share:.0%} of {row.label}" for row in result.gradients if row.output.nan_share]
    if lost:
        yield f"  gradients that are NaN on both sides, which says nothing: {some(lost)}"
    tokens = result.a.tokens
    if tokens is not None:
        yield f"  compared on {int(tokens.sum())} tokens of {counted(tokens.size, 'position')}: the others are padding"


def far(x: Distance) -> str:
    """How far two arrays are apart, beside what they may be."""
    if x.shapes is not None:
        return f"shapes {x.shapes[0]} in a, {x.shapes[1]} in b, which cannot hold the same numbers"
    return f"{x.apart:.2g} apart in float64, with a bound of {x.bound:.1g}"
