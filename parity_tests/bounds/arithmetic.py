"""Rules for arithmetic, elementary functions and comparisons, element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_np import ops
from parity_tests.bounds.error_array import FUNCTIONS, UFUNCS, ErrArray, Flag, lift, magnitude, plain, rounded, rule
from parity_tests.bounds.precision import FUNCTION, promised


@rule(UFUNCS, np.add)
def add(x: Any, y: Any) -> ErrArray:
    x, y = lift(x), lift(y)
    return rounded(x.v + y.v, x.b + y.b)


@rule(UFUNCS, np.subtract)
def subtract(x: Any, y: Any) -> ErrArray:
    x, y = lift(x), lift(y)
    return rounded(x.v - y.v, x.b + y.b)


@rule(UFUNCS, np.multiply)
def multiply(x: Any, y: Any) -> ErrArray:
    """|xy - x'y'| <= |x| b_y + b_x (|y| + b_y). Scaling by a power of two is exact."""
    x, y = lift(x), lift(y)
    v = x.v * y.v
    b = np.abs(x.v) * y.b + x.b * magnitude(y)
    if any(a.size == 1 and not a.b.any() and abs(np.frexp(a.v)[0]).item() in (0.5, 0.0) for a in (x, y)):
        return ErrArray(v, b + np.where(v == 0, 0.0, promised().eta))  # but for what is flushed to zero
    return rounded(v, b)


@rule(UFUNCS, np.divide)
def divide(x: Any, y: Any) -> ErrArray:
    """|x/y - x'/y'| <= (b_x + |x/y| b_y) / (|y| - b_y). Three roundings: a compiler may multiply by the reciprocal."""
    x, y = lift(x), lift(y)
    with np.errstate(divide="ignore", invalid="ignore"):
        v = x.v / y.v
        b = np.where((x.b == 0) & (y.b == 0), 0.0, (x.b + np.abs(v) * y.b) / np.maximum(np.abs(y.v) - y.b, 0.0))
    return rounded(v, np.where(np.isnan(b), np.inf, b), 3.0)


@rule(UFUNCS, np.negative)
def negative(x: ErrArray) -> ErrArray:
    return ErrArray(-x.v, x.b)


@rule(UFUNCS, np.absolute)
def absolute(x: ErrArray) -> ErrArray:
    return ErrArray(np.abs(x.v), x.b)


@rule(UFUNCS, np.maximum)
def maximum(x: Any, y: Any) -> ErrArray:
    x, y = lift(x), lift(y)
    return ErrArray(np.maximum(x.v, y.v), np.maximum(x.b, y.b))


@rule(UFUNCS, np.square)
def square(x: ErrArray) -> ErrArray:
    return rounded(x.v**2, x.b * (2 * np.abs(x.v) + x.b))


@rule(UFUNCS, np.exp)
def exponential(x: ErrArray) -> ErrArray:
    """e^{x+d} - e^x = e^x (e^d - 1)."""
    with np.errstate(over="ignore"):
        v = np.exp(x.v)
        return rounded(v, v * np.expm1(x.b), FUNCTION)


@rule(UFUNCS, np.log)
def logarithm(x: ErrArray) -> ErrArray:
    """|log x - log x'| <= log(x / (x - b)), on the side where the slope is larger."""
    with np.errstate(invalid="ignore", divide="ignore"):
        v = np.log(x.v)
        b = np.where(x.b == 0, 0.0, -np.log1p(-np.minimum(x.b / np.abs(x.v), 1.0)))
    return rounded(v, b, FUNCTION)


@rule(UFUNCS, np.sqrt)
def square_root(x: ErrArray) -> ErrArray:
    """sqrt(x) - sqrt(x') = (x - x') / (sqrt(x) + sqrt(x'))."""
    v, low = np.sqrt(x.v), np.maximum(x.v - x.b, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        b = np.where(x.b == 0, 0.0, x.b / (v + np.sqrt(low)))
    return rounded(v, np.where(x.v >= x.b, b, np.inf), FUNCTION)


def monotone(function: Callable[..., Any], slope: Callable[..., Any], most: float) -> Callable[[ErrArray], ErrArray]:
    """|f(x+d) - f(x)| <= |d| sup of the slope between, which falls with |x|, and never more than the range."""

    def apply(x: ErrArray) -> ErrArray:
        steepest = slope(np.maximum(np.abs(x.v) - x.b, 0.0))
        return rounded(function(x.v), np.minimum(x.b * steepest, most), FUNCTION)

    return apply


UFUNCS[np.tanh] = monotone(np.tanh, lambda x: 1 / np.cosh(np.minimum(x, 300.0)) ** 2, 2.0)
FUNCTIONS[ops.sigmoid] = monotone(plain(ops.sigmoid), lambda x: 1 / (2 * np.cosh(np.minimum(x, 600.0) / 2)) ** 2, 1.0)


@rule(FUNCTIONS, ops.softplus)
def softplus(x: ErrArray) -> ErrArray:
    """The slope is sigmoid(x), which rises. `log` of 1 + the exponential's error: both errors are relative."""
    steepest = plain(ops.sigmoid)(x.v + x.b)
    return rounded(plain(ops.softplus)(x.v), x.b * steepest, 2 * FUNCTION)


def comparison(function: Callable[..., Any]) -> Callable[[Any, Any], Flag]:
    def apply(x: Any, y: Any) -> Flag:
        x, y = lift(x), lift(y)
        return Flag(function(x.v, y.v), np.abs(x.v - y.v) <= x.b + y.b)

    return apply


for _compare in (np.greater, np.greater_equal, np.less, np.less_equal, np.equal):
    UFUNCS[_compare] = comparison(_compare)
