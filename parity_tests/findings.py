"""What is wrong with one candidate in one case: the first difference, its picture, and what would explain it."""

from dataclasses import dataclass, field

import numpy as np

from parity_tests.judge import Row


@dataclass(frozen=True)
class Cause:
    """A known mistake that, made in the reference, gives the candidate's numbers.

    Attributes:
        name: the mistake, in words.
        fix: what to change, in one line.
        ratio: largest error/bound of the candidate against the reference with the mistake; at most 1.
    """

    name: str
    fix: str
    ratio: float


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
