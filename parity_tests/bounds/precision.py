"""What an implementation promises of its arithmetic, and the promise that a calculation is judged under.

Symbols: u is the unit roundoff of the arithmetic plus that of float64 (the reference rounds too), gamma(n) bounds the
relative error of a sum of n products in any order (Higham, Accuracy and Stability, 2nd ed., chapter 3), eta is the
absolute error of one underflow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-11}
UNDERFLOW = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0}
LARGEST["bfloat16"] = 3.3895313892515355e38

# Relative error of the elementary functions, in units of u: 3 ulp = 6 u. Measured over the frameworks on CPU the worst
# is below it, XLA's tanh with 4.8 u in float32; the table in docs/agreement.md has the others.
FUNCTION = 6.0


@dataclass(frozen=True)
class Precision:
    """What an implementation promises: the arithmetic it computes in and the type it rounds results to.

    Attributes:
        work: float64 or float32, the type of every operation.
        out: the type that outputs and gradients are rounded to once.
        product: type that the factors of matrix products are rounded to first ("tf32"), None for `work`.
        recomputed: the backward pass computes the weights of a softmax again, as exp(score - log-sum-exp). The score
            is another sum than the one in the log-sum-exp, and that is rounded to its own size, u |log-sum-exp|; in a
            softmax, the largest score cancels with both. So a weight p errs more, relative to itself, by the bounds of
            its score and of the row's, by u (|log-sum-exp| + |log p|) and by the error of one more `exp`.
    """

    work: str
    out: str
    product: str | None = None
    recomputed: bool = False

    @property
    def u(self) -> float:
        return UNIT[self.work] + UNIT["float64"]

    @property
    def eta(self) -> float:
        return UNDERFLOW[self.work]

    def gamma(self, n: int) -> float:
        """Relative error of a sum of n products, any order: n u / (1 - n u), for the candidate and the reference."""
        total = 0.0
        for unit in (UNIT[self.work], UNIT["float64"]):
            t = n * unit
            total += t / (1 - t) if t < 1 else np.inf
        return total + (2 * UNIT[self.product] if self.product else 0.0)


def precision_of(dtype: str) -> Precision:
    """The promise of every textbook path: 16-bit types are computed in float32 and rounded once."""
    return Precision(work="float64" if dtype == "float64" else "float32", out=dtype)


def fast_precision_of(framework: str, dtype: str) -> Precision:
    """The promise of a tree's fast path: the textbook's, but PyTorch's own kernel recomputes the weights."""
    return replace(precision_of(dtype), recomputed=framework == "torch")


EXACT = Precision("float64", "float64")
_current: ContextVar[Precision] = ContextVar("precision", default=EXACT)
_noise: ContextVar[np.random.Generator | None] = ContextVar("noise", default=None)
_roundings: ContextVar[bool] = ContextVar("roundings", default=False)


def promised() -> Precision:
    """The promise under which the reference runs now."""
    return _current.get()


def current_noise() -> np.random.Generator | None:
    """What operations draw their errors from, under `noise`."""
    return _noise.get()


def rounding_now() -> bool:
    """Whether operations round, under `roundings`."""
    return _roundings.get()


@contextmanager
def precision(p: Precision) -> Iterator[None]:
    """Run the reference under the promise of one implementation."""
    token = _current.set(p)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def noise(rng: np.random.Generator) -> Iterator[None]:
    """Let every operation err at random within its bound, in place of carrying the bound on."""
    token = _noise.set(rng)
    try:
        yield
    finally:
        _noise.reset(token)


@contextmanager
def roundings() -> Iterator[None]:
    """Let every operation round to the type of the promise, as it does in that type, in place of carrying a bound on.

    A sum is rounded once: products in a small type are added in a larger one nearly everywhere.
    """
    token = _roundings.set(True)
    try:
        yield
    finally:
        _roundings.reset(token)
