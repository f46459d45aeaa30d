"""Arrays that runs do not judge: their bounds are so wide that numbers of no use are within."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray, delivered, widened
from parity_tests.judge.candidates import run_numpy
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import Row
from parity_tests.ports.trace import Trace, cast

# An array that is 0 but for roundings, such as the gradient of a key's bias, shrinks with the unit roundoff: from
# float32 to float64 by 2^29. Over all variants it shrank by 2^26 to 2^31, and every other array not at all.
SHRINKS = 2.0**-14


@dataclass(frozen=True)
class Unjudged:
    """Arrays of a call that no run in a type judged.

    Attributes:
        dtype, call: of the runs.
        names: of the arrays.
    """

    dtype: str
    call: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.names)} (call {self.call}, {self.dtype})"


def says_little(x: ErrArray) -> bool:
    """Whether zeros in an array's place are within its bounds, or most bounds are above its root mean square."""
    inexact = x.b != 0
    size = np.sqrt(np.mean(np.where(np.isfinite(x.v), x.v, 0.0) ** 2)) if x.size else 0.0
    wide = ~(x.b <= size) & inexact  # a bound that is NaN says nothing either
    with np.errstate(invalid="ignore"):
        zeros = ~(np.abs(x.v) > x.b)
    return bool(inexact.any() and (zeros.all() or 2 * wide.sum() > inexact.sum()))


def judged_by(ends: Mapping[str, Any]) -> set[str]:
    """The names of the arrays whose bounds judge them; a 0 that nothing depends on judges nothing."""
    return {name for name, x in ends.items() if isinstance(x, ErrArray) and x.v.any() and not says_little(x)}


def bounds_of(trace: Trace) -> dict[str, ErrArray]:
    """Every array of a verdict with the bound that it was judged by."""
    rows, anchor = trace.verdicts()
    ends = {row.name for row in rows if row.stage in ("output", "gradient")}
    wanted = {row.name: x for row in rows if isinstance(x := anchor.wanted.get(row.name), ErrArray)}
    return {name: delivered(x, trace.case.dtype) if name in ends else x for name, x in wanted.items()}


def vanishing(case: Case, drawn: Drawn, names: Iterable[str]) -> set[str]:
    """Which of some arrays are 0 but for roundings: in float64 they are far smaller than in float32."""
    sizes: list[dict[str, float]] = []
    for dtype in ("float64", "float32"):
        with np.errstate(all="ignore"):
            out = run_numpy(case.at(dtype), cast(drawn, dtype), True)
        results = out.tape | out.cotangents | out.outputs | out.grads
        sizes.append({n: float(np.max(np.abs(widened(results[n])), initial=0.0)) for n in names if n in results})
    wide, narrow = sizes
    return {n for n, size in wide.items() if np.isfinite(narrow[n]) and size <= SHRINKS * narrow[n]}


@dataclass(frozen=True)
class Look:
    """What the bounds of a trace say about its arrays.

    Attributes:
        case: the call.
        judged: arrays whose bounds judge them.
        zero: those that are 0 but for roundings, so that a bound above their size judges them, too.
        loose: those that are not judged, in the order of the computation.
    """

    case: Case
    judged: set[str]
    zero: set[str]
    loose: tuple[str, ...]

    def settled(self, row: Row) -> Row:
        """The verdict on an array, without numbers that say little where it is 0 but for roundings."""
        return replace(row, vacuous=0) if row.case == self.case and row.name in self.zero else row


def look_at(trace: Trace) -> Look:
    """What the bounds of a trace say about its arrays."""
    bounds = bounds_of(trace)
    judged = judged_by(bounds)
    little = [name for name in bounds if name not in judged]
    zero = vanishing(trace.case, trace.drawn, little) if little else set[str]()
    return Look(trace.case, judged, zero, tuple(name for name in little if name not in zero))


def unjudged(looks: Iterable[Look]) -> list[Unjudged]:
    """The arrays that no run of their call judges."""
    loose: dict[tuple[str, str], dict[str, None]] = {}
    judged: dict[tuple[str, str], set[str]] = {}
    for look in looks:
        key = look.case.dtype, look.case.call
        loose.setdefault(key, {}).update(dict.fromkeys(look.loose))
        judged.setdefault(key, set()).update(look.judged)
    left = {key: tuple(name for name in names if name not in judged[key]) for key, names in loose.items()}
    return [Unjudged(*key, names) for key, names in left.items() if names]


def in_every_type(found: Iterable[Unjudged], dtypes: Iterable[str]) -> list[Unjudged]:
    """What is judged in none of these types; each part is of the first of them."""
    names = {(part.dtype, part.call): part.names for part in found}
    first, *others = dict.fromkeys(dtypes)
    parts = [
        Unjudged(dtype, call, tuple(n for n in own if all(n in names.get((other, call), ()) for other in others)))
        for (dtype, call), own in names.items()
        if dtype == first
    ]
    return [part for part in parts if part.names]
