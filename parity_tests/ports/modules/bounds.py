r"""How far two sides may be apart, from the errors that they make.

Rounding errors are small, so they enter a result to first order: its error is a sum $\sum_i c_i \delta_i$ over all
roundings $|\delta_i| \le u$, and the $c_i$ depend on the computation, not on the type. The error $e$ of a run in a type
with unit roundoff $u$, measured against the run in float64, thus says what the error of the float64 run is: about
$e\,u_{64}/u$. No bound needs to be picked, and an ill-conditioned module gets a wider one.

*Meaning.* Two float64 runs of one function differ by about $e\,u_{64}/u$, and two functions whose difference can be
seen in the module's own type differ by $e$ or more. The bound is the geometric mean of the two,

$$ |a_{64} - b_{64}| \le \sqrt{u_{64}/u_a}\; e_a + \sqrt{u_{64}/u_b}\; e_b. $$

For float32 it is $2^{14.5}$ times above the first and below the second. The estimate rests on one draw of the
roundings. Where a single rounding matters, the quotient of two draws exceeds $k$ with a probability of about
$2/(\pi k)$, $2^{-15}$ here; where $n$ of them matter independently, the largest counts, and it is a power $n$ of that.
$e$ is the largest error in the array, and at least one rounding of its largest number, as a sum may happen to be exact.

*Constants.* A table that was rounded when it was made, such as the frequencies of rotary positions, has that error in
float64, too. A third run with each of its numbers moved by 16 roundings, up or down at random, says how much that
matters: a power multiplies the rounding of its exponent by the logarithm of its base, which is 13.8 for a million, and
the operations around it round once each. (A table in 16 bits was cast to them: its numbers are moved by one rounding of
that type.) The error itself is at most as large, so the root mean square of the change is
at least its standard deviation, and 10.6 times it is what $2^{40}$ normally distributed numbers exceed with a
probability of $2^{-40}$.

*Precision.* A float32 side whose error is $2^{6.5}$ times that of the other, and of one rounding, is less precise: half
way, as a power, from float32 to the type with the next larger roundoff, TF32 or float16. Nothing is said of arrays that
are 0 but for what does not cancel, such as the gradient of the scores of a single key: no side has a digit of them.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import UNIT
from parity_tests.ports.modules.aligned import Change
from parity_tests.ports.modules.recordings import Arrays, Recording, blocks, real

NORMAL = 10.6
LESS_PRECISE = np.sqrt(UNIT["tf32"] / UNIT["float32"])
# What is this low is there to hide a score, whichever of its numbers a type has for that.
LOWEST = -3.38e38


@dataclass(frozen=True)
class Measure:
    """One array of one side in its runs.

    Attributes:
        exact, own: in float64 and in the type `dtype`.
        moved: in float64 with the constants moved; None where there are none.
    """

    exact: np.ndarray
    own: np.ndarray
    moved: np.ndarray | None
    dtype: str

    @property
    def error(self) -> float:
        """The largest error of the own type, and at least one rounding of the largest number."""
        with np.errstate(invalid="ignore"):  # hidden scores are -inf in both
            errors = (largest(hidden(x) - hidden(y)) for x, y in blocks(self.own, self.exact))
            return max(max(errors, default=0.0), self.rounding)

    @property
    def spread(self) -> float:
        """The root mean square of what moved constants change."""
        if self.moved is None:
            return 0.0
        with np.errstate(invalid="ignore"):
            gap = finite(hidden(self.moved) - hidden(self.exact))
        return float(np.sqrt(np.mean(gap**2))) if gap.size else 0.0

    @property
    def rounding(self) -> float:
        return UNIT[self.dtype] * max((largest(hidden(x)) for (x,) in blocks(self.exact)), default=0.0)

    @property
    def has_digits(self) -> bool:
        """Whether the own type gets a digit of the largest number: its errors are below that."""
        return self.error * UNIT[self.dtype] < self.rounding

    @property
    def bound(self) -> float:
        """How far the float64 run may be from what it means."""
        return float(np.sqrt(UNIT["float64"] / UNIT[self.dtype]) * self.error + NORMAL * self.spread)

    def changed(self, change: Change) -> Self:
        """The same with each of its arrays in another shape."""
        moved = None if self.moved is None else change(self.moved)
        return replace(self, exact=change(self.exact), own=change(self.own), moved=moved)


@dataclass(frozen=True)
class Known(Measure):
    """A gradient of a weight: as large as the model, so what the other runs say of it is kept in two numbers.

    Attributes:
        numbers: the largest error of the own type, and the root mean square of what moved constants change.
    """

    numbers: tuple[float, float] = (0.0, 0.0)

    @property
    def error(self) -> float:
        return max(self.numbers[0], self.rounding)

    @property
    def spread(self) -> float:
        return self.numbers[1]


@dataclass(frozen=True)
class Distance:
    """Two arrays that should be the same.

    Attributes:
        apart: their largest difference in float64; infinite where one is NaN or has another shape.
        bound: what it may be.
        own: their largest difference in their own types; None of gradients of weights, of which they are not kept.
        errors: how far each is from its float64 run.
        less_precise: "a" or "b" where one of two float32 sides computes in a smaller type.
        shapes: of both, where neither holds the numbers of the other: they are infinitely far apart.
        nan_share: how much of both is NaN, which says nothing.
    """

    apart: float
    bound: float
    own: float | None
    errors: tuple[float, float]
    less_precise: str | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    nan_share: float = 0.0

    @property
    def ratio(self) -> float:
        """The difference as a share of the bound; at most 1 agrees."""
        return 0.0 if self.apart == 0 else self.apart / self.bound if self.bound else np.inf

    @property
    def ok(self) -> bool:
        return self.ratio <= 1


def hidden(x: np.ndarray) -> np.ndarray:
    """An array with -inf for every number that hides a score."""
    return np.where(x <= LOWEST, -np.inf, x) if x.dtype.kind == "f" else x


def finite(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


def largest(x: np.ndarray) -> float:
    return max((float(np.max(np.abs(finite(part)), initial=0.0)) for (part,) in blocks(x)), default=0.0)


def gap(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference of two arrays; NaN is the same as NaN only."""
    if x.shape != y.shape:
        return np.inf
    return max((gap_of(*parts) for parts in blocks(x, y)), default=0.0)


def gap_of(x: np.ndarray, y: np.ndarray) -> float:
    x, y = hidden(x), hidden(y)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return float(np.max(np.where(np.isnan(apart), np.inf, apart)))


def distance(a: Measure, b: Measure) -> Distance:
    """How far two arrays are apart, and how far they may be."""
    if a.exact.dtype.kind in "biu" or b.exact.dtype.kind in "biu":
        apart = 0.0 if np.array_equal(a.exact, b.exact) else np.inf
        return Distance(apart, 0.0, apart, (0.0, 0.0))
    errors, own = (a.error, b.error), None if isinstance(a, Known) else gap(a.own, b.own)
    whose = None
    if a.dtype == b.dtype == "float32":
        sides = ("a", a, b), ("b", b, a)
        digits = a.has_digits or b.has_digits
        whose = next((n for n, x, y in sides if LESS_PRECISE * y.error < x.error and digits), None)
    return Distance(gap(a.exact, b.exact), a.bound + b.bound, own, errors, whose, nan_share=nan_share(a.exact, b.exact))


def nan_share(x: np.ndarray, y: np.ndarray) -> float:
    """How much of two arrays is NaN in both, which equals itself and says nothing: from 0 to 1."""
    return float(np.mean(np.isnan(x) & np.isnan(y))) if x.shape == y.shape and x.size and x.dtype.kind == "f" else 0.0


def measure(recording: Recording, exact: Arrays, own: Arrays, moved: Arrays | None, name: str) -> Measure:
    """One array of a side, by its name in each run."""
    tokens = recording.tokens
    x = widened(exact[name])
    seen = own.get(name)
    seen = x if seen is None or seen.shape != x.shape else widened(seen)
    shifted = None if moved is None or name not in moved or moved[name].shape != x.shape else widened(moved[name])
    return Measure(x, seen, shifted, recording.probe).changed(lambda x: real(x, tokens))
