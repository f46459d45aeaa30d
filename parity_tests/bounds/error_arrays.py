"""Error-carrying arrays: a float64 value and, for every element, a bound on how far a correct implementation may be.

The reference itself runs on them, through NumPy's own dispatch protocols (`__array_ufunc__`, NEP 13, and
`__array_function__`, NEP 18), so every variant, intermediate and gradient gets its tolerance from its own code.
`ErrArray(v, b)` says: any implementation that performs these operations in the precision at hand, sums in any order and
uses one of the algebraic forms that a rule names, ends within b of v, element by element.

Symbols in the rules: u is the unit roundoff of the arithmetic plus that of float64 (the reference rounds too), gamma(n)
bounds the relative error of a sum of n products in any order (Higham, Accuracy and Stability, 2nd ed., chapter 3),
eta is the absolute error of one underflow.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from attn_np import _masks, _ops, _vjp

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


def nearest(v: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded to as many binary digits as a type has, whatever their size."""
    with np.errstate(invalid="ignore"):
        part, power = np.frexp(v)
        return np.ldexp(np.round(part / UNIT[dtype]) * UNIT[dtype], power)


def jostled(x: "ErrArray") -> "ErrArray":
    """A result as it is; under `noise` a value within its bound, and under `roundings` the rounded one, without one."""
    if _roundings.get():
        return ErrArray(nearest(x.v, _current.get().work), 0.0)
    rng = _noise.get()
    if rng is None or not x.b.any():
        return x
    b = np.where(np.isfinite(x.b) & np.isfinite(x.v), x.b, 0.0)
    return ErrArray(x.v + b * rng.uniform(-1, 1, x.shape), 0.0)


@contextmanager
def precision(p: Precision) -> Iterator[None]:
    """Run the reference under the promise of one implementation."""
    token = _current.set(p)
    try:
        yield
    finally:
        _current.reset(token)


class ErrArray(NDArrayOperatorsMixin):
    """Value `v` and elementwise bound `b`; immutable. `soft` carries what a softmax knows about its own errors, and
    `again` how much more its weights err, relative to themselves, when they are recomputed.
    """

    __slots__ = ("again", "b", "soft", "v")

    def __init__(self, v: Any, b: Any, soft: Any = None, again: Any = None) -> None:
        self.v, self.soft, self.again = np.asarray(v, np.float64), soft, again
        self.b = np.broadcast_to(np.asarray(b, np.float64), self.v.shape)

    shape = property(lambda self: self.v.shape)
    ndim = property(lambda self: self.v.ndim)
    size = property(lambda self: self.v.size)
    dtype = property(lambda self: self.v.dtype)

    def __len__(self) -> int:
        return len(self.v)

    def __getitem__(self, index: Any) -> "ErrArray":
        return ErrArray(self.v[index], self.b[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("error-carrying arrays are immutable: build with stack or concatenate")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("converting would drop the error bound")

    def __bool__(self) -> bool:
        raise TypeError("branching on a value with an error bound: use where")

    def __float__(self) -> float:
        raise TypeError("converting would drop the error bound")

    def reshape(self, *shape: Any) -> "ErrArray":
        return ErrArray(self.v.reshape(*shape), self.b.reshape(*shape))

    def transpose(self, *axes: Any) -> "ErrArray":
        return ErrArray(self.v.transpose(*axes), self.b.transpose(*axes))

    def swapaxes(self, i: int, j: int) -> "ErrArray":
        return ErrArray(self.v.swapaxes(i, j), self.b.swapaxes(i, j))

    def sum(self, axis: int) -> "ErrArray":
        return summed(self, axis)

    def astype(self, dtype: Any, **_: Any) -> "ErrArray":
        """Values stay in float64; a narrower type adds its one rounding."""
        name = np.dtype(dtype).name
        return self if name == "float64" else delivered(self, name, always=True)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            raise TypeError("an in-place operation would drop the bound or change a taped array")
        if method != "__call__" or ufunc not in UFUNCS or kwargs:
            return NotImplemented
        return UFUNCS[ufunc](*args)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in FUNCTIONS:
            raise TypeError(f"{function.__name__} has no error rule")
        return FUNCTIONS[function](*args, **kwargs)

    def __repr__(self) -> str:
        return f"ErrArray({self.v}, ±{self.b})"


class Flag:
    """A comparison of error-carrying arrays: its value, and where the bounds leave it open."""

    def __init__(self, value: Any, undecided: Any) -> None:
        self.value = np.asarray(value)
        self.undecided = np.broadcast_to(undecided, self.value.shape)

    # Plain arrays leave operations with a comparison to it.
    __array_ufunc__ = None

    def __and__(self, other: Any) -> "Flag":
        """Of several conditions: open where one is and no other is certainly false."""
        if not isinstance(other, Flag):
            other = Flag(other, False)
        value, could = self.value & other.value, (self.value | self.undecided) & (other.value | other.undecided)
        return Flag(value, could & (self.undecided | other.undecided))

    __rand__ = __and__
    ndim, shape = property(lambda self: self.value.ndim), property(lambda self: self.value.shape)

    def __getitem__(self, index: Any) -> "Flag":
        return Flag(self.value[index], self.undecided[index])

    def reshape(self, *shape: Any) -> "Flag":
        return Flag(self.value.reshape(*shape), self.undecided.reshape(*shape))

    def transpose(self, *axes: Any) -> "Flag":
        return Flag(self.value.transpose(*axes), self.undecided.transpose(*axes))

    def __bool__(self) -> bool:
        raise TypeError("the error bounds do not decide this: use where")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return FUNCTIONS[function](*args, **kwargs) if function in FUNCTIONS else NotImplemented


UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def rule(table: dict[Any, Callable[..., Any]], *names: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        table.update(dict.fromkeys(names, function))
        return function

    return register


def plain(function: Any) -> Any:
    """The function itself, without the dispatch that `primitive` put before it."""
    return function.__wrapped__


def lift(x: Any) -> ErrArray:
    """A constant: integers are exact, a float may be rounded to the working type by the framework."""
    if isinstance(x, ErrArray):
        return x
    x = np.asarray(x)
    if x.dtype == object:
        raise TypeError(f"expected numbers, got {x!r}")
    if x.dtype == bool or x.dtype.kind in "iu":
        return ErrArray(x.astype(np.float64), 0.0)
    x = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = x.astype(_ops.DTYPES[_current.get().work]).astype(np.float64)
        return ErrArray(x, np.where(np.isfinite(kept), np.abs(x - kept), 0.0))


def rounded(v: np.ndarray, b: np.ndarray, roundings: float = 1.0) -> ErrArray:
    """The result of an operation: its propagated bound, plus its own rounding; no bound beyond overflow.

    Sums, products and quotients that are 0 without an error are so in every type; functions may miss.
    """
    p = _current.get()
    with np.errstate(invalid="ignore", over="ignore"):
        # What is infinite or NaN in float64 without an error in what it was made of is so in every type.
        exact = ~np.isfinite(v) & ~np.isposinf(b)
        exact = exact | ((v == 0) & (b == 0)) if roundings < FUNCTION else exact
        b = b + roundings * p.u * (np.abs(v) + b) + p.eta
        return jostled(ErrArray(v, np.where(exact, 0.0, np.where(np.abs(v) + b <= LARGEST[p.work], b, np.inf))))


def magnitude(x: ErrArray) -> np.ndarray:
    return np.abs(x.v) + x.b


# Arithmetic -----------------------------------------------------------------------------------------------------------


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
        return ErrArray(v, b + np.where(v == 0, 0.0, _current.get().eta))  # but for what is flushed to zero
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
FUNCTIONS[_ops.sigmoid] = monotone(plain(_ops.sigmoid), lambda x: 1 / (2 * np.cosh(np.minimum(x, 600.0) / 2)) ** 2, 1.0)


@rule(FUNCTIONS, _ops.softplus)
def softplus(x: ErrArray) -> ErrArray:
    """The slope is sigmoid(x), which rises. `log` of 1 + the exponential's error: both errors are relative."""
    steepest = plain(_ops.sigmoid)(x.v + x.b)
    return rounded(plain(_ops.softplus)(x.v), x.b * steepest, 2 * FUNCTION)


def comparison(function: Callable[..., Any]) -> Callable[[Any, Any], Flag]:
    def apply(x: Any, y: Any) -> Flag:
        x, y = lift(x), lift(y)
        return Flag(function(x.v, y.v), np.abs(x.v - y.v) <= x.b + y.b)

    return apply


for _compare in (np.greater, np.greater_equal, np.less, np.less_equal, np.equal):
    UFUNCS[_compare] = comparison(_compare)


# Moving and joining ---------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, np.where)
def where(condition: Any, x: Any, y: Any) -> ErrArray:
    """Selection is exact; where the bounds leave the condition open, either side may have been taken."""
    x, y = lift(x), lift(y)
    if not isinstance(condition, Flag):
        return ErrArray(np.where(condition, x.v, y.v), np.where(condition, x.b, y.b))
    gap = np.abs(x.v - y.v)
    v, b = np.where(condition.value, x.v, y.v), np.where(condition.value, x.b, y.b)
    other = np.where(condition.value, y.b, x.b)
    return ErrArray(v, np.where(condition.undecided, np.maximum(b, gap + other), b))


@rule(FUNCTIONS, np.any)
def any_of(x: Flag, axis: Any = None) -> Flag:
    """Open where none is certain and one may be."""
    could, sure = np.any(x.value | x.undecided, axis=axis), np.any(x.value & ~x.undecided, axis=axis)
    return Flag(np.any(x.value, axis=axis), could & ~sure)


@rule(FUNCTIONS, _masks.unmasked_by_bias)
def shown(allowed: Any, bias: Any) -> Any:
    """Where a bias is -inf it is so without an error: what it hides is a plain array."""
    return plain(_masks.unmasked_by_bias)(allowed, bias.v if isinstance(bias, ErrArray) else bias)


@rule(FUNCTIONS, _ops.constants)
def constants(values: Any, like: Any) -> ErrArray:
    """Each number is rounded to the working type."""
    return lift(plain(_ops.constants)(values, like))


@rule(FUNCTIONS, np.sum)
def summed(x: Any, axis: Any = None, keepdims: bool = False) -> ErrArray:
    """Bounds add; the additions themselves err by gamma(n - 1) of the sum of the absolute values."""
    x = lift(x)
    v = np.sum(x.v, axis=axis, keepdims=keepdims)
    n = max(x.size // max(np.size(v), 1), 1)
    spread = np.sum(magnitude(x), axis=axis, keepdims=keepdims)
    return rounded(v, np.sum(x.b, axis=axis, keepdims=keepdims) + _current.get().gamma(n - 1) * spread, 0.0)


@rule(FUNCTIONS, np.cumsum)
def running(x: ErrArray, axis: int) -> ErrArray:
    """Every entry is a sum of those before it."""
    n = max(x.shape[axis], 1)
    most = np.cumsum(magnitude(x), axis=axis)
    return rounded(np.cumsum(x.v, axis=axis), np.cumsum(x.b, axis=axis) + _current.get().gamma(n - 1) * most, 0.0)


@rule(FUNCTIONS, np.max, np.amax)
def largest(x: ErrArray, axis: Any = None, keepdims: bool = False, **initial: Any) -> ErrArray:
    v, high, low = (np.max(a, axis=axis, keepdims=keepdims, **initial) for a in (x.v, x.v + x.b, x.v - x.b))
    with np.errstate(invalid="ignore"):
        return ErrArray(v, np.where(np.isinf(v), 0.0, np.maximum(high - v, v - low)))


FUNCTIONS[_ops.amax] = lambda x, axis: largest(x, axis)


def _moving(function: Callable[..., Any]) -> Callable[..., ErrArray]:
    return lambda x, *a, **k: ErrArray(function(x.v, *a, **k), function(x.b, *a, **k))


def _joining(function: Callable[..., Any]) -> Callable[..., ErrArray]:
    def apply(arrays: Any, *a: Any, **k: Any) -> ErrArray:
        lifted = [lift(x) for x in arrays]
        return ErrArray(function([x.v for x in lifted], *a, **k), function([x.b for x in lifted], *a, **k))

    return apply


for _function in (np.reshape, np.transpose, np.swapaxes, np.moveaxis, np.broadcast_to, np.expand_dims, np.squeeze,
                  np.repeat, np.flip, np.take_along_axis):  # fmt: skip
    FUNCTIONS[_function] = _moving(_function)
for _function in (np.concatenate, np.stack):
    FUNCTIONS[_function] = _joining(_function)
FUNCTIONS[np.shape], FUNCTIONS[np.ndim] = (lambda x: x.shape), (lambda x: x.ndim)


# Products -------------------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, _ops.einsum)
def einsum(spec: str, x: Any, y: Any) -> ErrArray:
    """sum (|x| b_y + b_x (|y| + b_y)) + gamma(n + 2) sum |x||y|, with magnitudes for absolute values.

    Two more than n: a compiler may move a scale into one of the factors. Where x holds softmax weights and their axis
    is summed, sum_j p_j (y_j - o) = 0 for the result o, so that only the spread of y around o is moved by errors in the
    exponents (centred propagation), and the smaller of the two bounds holds.
    """
    dot = plain(_ops.einsum)
    x, y, p = lift(x), lift(y), _current.get()
    if p.product and _roundings.get():
        x, y = (ErrArray(nearest(factor.v, p.product), 0.0) for factor in (x, y))
    left, right, out = spec.replace("->", ",").split(",")
    size = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))
    n = prod([size[letter] for letter in set(left + right) - set(out)])
    g = p.gamma(n + 2)
    with np.errstate(invalid="ignore"):
        v, xm, ym = dot(spec, x.v, y.v), np.abs(x.v), magnitude(y)
        b = dot(spec, xm, g * ym + y.b)
        b = b + dot(spec, x.b, (1 + g) * ym) if x.b.any() else b
        b = b + np.where((v == 0) & (b == 0), 0.0, n * p.eta)  # products with 0 do not underflow
    summed_last = {letter for letter in left + right if letter not in out} == {left[-1]}
    if x.soft is None or not summed_last:
        return rounded(v, b, 0.0)
    w, rho, eta = x.soft
    shift = y.v.mean(axis=right.index(left[-1]), keepdims=True)  # any shift serves; this one keeps the squares small
    z, zo = y.v - shift, v - dot(spec, x.v, np.broadcast_to(shift, y.shape))
    ones, first, second = dot(spec, w, np.ones(y.shape)), dot(spec, w, z), dot(spec, w, z * z)
    spread = np.maximum(second - 2 * zo * first + zo**2 * ones, 0.0)
    spread = spread + 4 * n * UNIT["float64"] * (second + 2 * np.abs(zo * first) + zo**2 * ones)
    centred = np.sqrt(ones * spread)  # sum w |y - o| <= sqrt(sum w) sqrt(sum w (y - o)^2)
    c = centred + dot(spec, xm, (rho + g) * ym + y.b) + dot(spec, x.b, (rho + g) * ym + y.b) + dot(spec, eta, ym)
    return rounded(v, np.minimum(b, c + n * p.eta), 0.0)


@rule(FUNCTIONS, _vjp.total)
def total(*terms: Any) -> ErrArray:
    """A sum of a few terms in any order: every partial sum is rounded."""
    lifted = [lift(x) for x in terms]
    v, b = np.sum([x.v for x in lifted], axis=0), np.sum([x.b for x in lifted], axis=0)
    most = np.sum([magnitude(x) for x in lifted], axis=0)
    return rounded(v, b + len(lifted) * _current.get().u * most, 0.0)


# Softmax --------------------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, _ops.softmax)
def softmax(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """Errors e_j in the exponents move p_j most when it rises by e_j and all others fall by theirs, and conversely.

    e_j collects the bound of the score, the rounding of the subtracted maximum (the maximum itself cancels) and the
    error of `exp`. The sum and the division add rho, relative. With up = e^{e_j} - 1, down = 1 - e^{-e_j}:
    the extremes of p_j e^{d_j} / sum_i p_i e^{d_i} over |d_i| <= e_i are the two quotients below. Where the bounds
    leave open who may be seen, the weights of a row may be those of other keys: anything from 0 to 1.
    """
    if isinstance(allowed, Flag):
        found = softmax(scores, allowed.value, axis)
        unsure = np.broadcast_to(allowed.undecided, found.shape)
        if not unsure.any():
            return found
        rows, could = np.any(unsure, axis=axis, keepdims=True), allowed.value | allowed.undecided
        most = np.maximum(found.v, 1 - found.v)
        return ErrArray(found.v, np.where(rows & could, np.maximum(found.b, most), found.b))
    s, p = lift(scores), _current.get()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    n = s.shape[axis]
    probs = plain(_ops.softmax)(s.v, None if allowed is None else ok, axis)
    if n == 0:
        return ErrArray(probs, 0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(s.v), np.abs(s.v - top), 0.0)
        e = np.where(ok, s.b + p.u * (far + s.b + loose) + FUNCTION * p.u, 0.0)
        up, down = np.expm1(e), -np.expm1(-e)
        fall = np.sum(probs * down, axis=axis, keepdims=True)
        rise = np.sum(probs * up, axis=axis, keepdims=True)
        higher = (up * (1 - probs) + np.maximum(fall - probs * down, 0)) / (
            probs * (up + 1) + np.maximum((1 - fall) - probs * (1 - down), 0)
        )
        lower = (down * (1 - probs) + np.maximum(rise - probs * up, 0)) / (
            probs * (1 - down) + np.maximum((1 + rise) - probs * (1 + up), 0)
        )
        rho = p.gamma(n) + 4 * p.u
        relative = np.maximum(np.nan_to_num(higher, nan=np.inf), np.nan_to_num(lower, nan=1.0))
        eta = np.where(ok, 4 * p.eta, 0.0)
        moved = np.minimum(np.where(probs > 0, probs * relative, 0.0), np.maximum(probs, 1 - probs))
        b = np.where(ok, moved * (1 + rho) + probs * rho + eta, 0.0)
        # A weight that underflowed to 0 in float64 can only become visible by a large error in its exponent.
        b = np.where(ok & (probs == 0), np.minimum(np.exp(np.minimum(2 * loose - 700, 0.0)) + eta, 1.0), b)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, b)
        w = probs * up / np.where(fall < 1, 1 - fall, np.nan)
        again = None
        if p.recomputed:
            logs = np.where(probs > 0, np.log(np.where(probs > 0, probs, 1.0)), 0.0)
            lse = np.max(np.where(probs > 0, s.v - logs, -np.inf), axis=axis, keepdims=True)
            far = np.where(np.isfinite(lse), np.abs(lse), 0.0) + np.abs(logs)
            again = np.expm1(s.b + loose + p.u * (far + s.b + loose) + FUNCTION * p.u)
    centred = axis in (-1, s.ndim - 1) and np.isfinite(w).all()
    if _noise.get() is not None:
        return jostled(ErrArray(probs, b))
    return ErrArray(probs, b, (w, rho, eta) if centred else None, again)


def recompute(tape: dict[str, Any]) -> None:
    """Give the weights on a tape the bounds with which the backward pass reads them; they add up to 1 less exactly."""
    for name, x in tape.items():
        if isinstance(x, ErrArray) and x.again is not None:
            more = np.max(x.again, axis=-1, keepdims=True, initial=0.0)
            soft = None if x.soft is None else (x.soft[0], x.soft[1] + more, x.soft[2])
            tape[name] = ErrArray(x.v, x.b + np.abs(x.v) * x.again, soft)


@rule(FUNCTIONS, _vjp.softmax_vjp)
def softmax_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """ds = p (dp - D), D = sum p dp. An error common to all dp cancels, so errors in p act on dp - D (centred).

    Automatic differentiation computes e (dp/t - sum(dp e)/t^2) from the unnormalised e = p t: with the roundings of
    both quotients that is 8 u more, relative to |dp| and to sum p |dp|. As t >= 1, e may be seen where p underflowed:
    it differs from p t by one underflow, which acts on dp - D. A row that sees nothing has no e.
    """
    x, y, p = lift(probs), lift(dprobs), _current.get()
    n = max(x.shape[axis], 1)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore"):
        dot, size = over(x.v * y.v), over((x.v + x.b) * magnitude(y))
        rho, eta = (x.soft[1], over(x.soft[2])) if x.soft else (np.inf, 0.0)
        direct = over(x.b * np.abs(y.v))
        centred = np.fmin(over(x.b * np.abs(y.v - dot)) + np.abs(dot) * (rho + eta), direct) if x.soft else direct
        error = centred + over((x.v + x.b) * y.b) + (p.gamma(n) + 8 * p.u) * size
        gap, inner = np.abs(y.v - dot), y.b + error
        seen = x.b > 0 if x.soft else over(x.v) > 0  # the softmax itself knows who may be seen
        loose = x.b + np.where(seen, p.eta, 0.0)
        b = loose * (gap + inner) + x.v * inner + 8 * p.u * (x.v + x.b) * (np.abs(y.v) + np.abs(dot) + inner)
    return rounded(x.v * (y.v - dot), b)


@rule(FUNCTIONS, _vjp.part_of_softmax)
def part_of_softmax(scores: Any, top: Any, total: Any, parts: int) -> ErrArray:
    """A running softmax gets the same weight as a product: one factor more for each part that came after."""
    out = plain(_vjp.part_of_softmax)(lift(scores), lift(top), lift(total), parts)
    return ErrArray(out.v, out.b + parts * (FUNCTION + 2) * _current.get().u * magnitude(out))


@rule(FUNCTIONS, _vjp.part_of_softmax_vjp)
def part_of_softmax_vjp(probs: Any, dprobs: Any, share: Any, parts: int) -> ErrArray:
    """Automatic differentiation divides dp and the share by the sum first, and multiplies each by the same factors.

    A factor may be seen where the weight underflowed, as for the whole softmax: one underflow for each part.
    """
    probs, dprobs, share = lift(probs), lift(dprobs), lift(share)
    out, p = plain(_vjp.part_of_softmax_vjp)(probs, dprobs, share, parts), _current.get()
    size = magnitude(dprobs) + magnitude(share)
    lost = np.where(share.v == 0, 0.0, (1 + parts) * p.eta * size)
    return ErrArray(out.v, out.b + (8 + 2 * parts) * p.u * magnitude(probs) * size + lost)


@rule(FUNCTIONS, _ops.sparsemax)
def sparsemax(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """tau moves by no more than the scores do at most, so p_i by that and by what its own score does.

    After the largest score is subtracted none is positive, so the sums cancel nothing: (sum - 1) / k errs relative to
    1 + |tau|, at most 2, and those of other k, which are smaller, no further up. A weight whose score lies below tau by
    more than all of this is 0 in every type.
    """
    s, p = lift(scores), _current.get()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    probs = plain(_ops.sparsemax)(s.v, None if allowed is None else ok, axis)
    if probs.size == 0:
        return ErrArray(probs, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        z = np.where(ok & np.isfinite(s.v), s.v - np.where(np.isfinite(top), top, 0.0), -np.inf)
        tau = np.max(np.where(probs > 0, z - probs, -np.inf), axis=axis, keepdims=True)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(z), np.abs(z), 0.0)
        most = s.b + loose + 2 * p.u * (far + s.b + loose) + 2 * p.gamma(s.shape[axis] + 4) + p.eta
        b = np.where(ok & ~(z - tau < -most), np.minimum(most, 1.0), 0.0)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, b)
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, _vjp.sparsemax_vjp)
def sparsemax_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """The support is a decision: where the bounds leave it open, the row's gradient may be that of another one."""
    x, y, p = lift(probs), lift(dprobs), _current.get()
    support = x.v > 0
    unsure = np.where(support, x.v <= x.b, x.b > p.eta)
    count = np.maximum(np.sum(support, axis=axis, keepdims=True), 1)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(np.where(support, a, 0.0), axis=axis, keepdims=True) / count

    size = magnitude(y)
    b = y.b + over(y.b) + (p.gamma(x.shape[axis] + 4) + 8 * p.u) * (size + over(size)) + p.eta
    most = 2 * np.max(size, axis=axis, keepdims=True, initial=0.0)
    b = np.where(np.any(unsure, axis=axis, keepdims=True), most, np.where(support, b, 0.0))
    return jostled(ErrArray(plain(_vjp.sparsemax_vjp)(x.v, y.v, axis), b))


@rule(FUNCTIONS, _ops.entmax15)
def entmax15(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """The root g = z - tau of a weight errs by what its own z does, half the score, and by what tau does.

    tau moves by a mean of the errors of z, weighted by g. The sums over the sorted z, as the paper has them, cancel: of
    k (mean of squares - squared mean) the error is relative to sum z^2 + (sum z)^2 / k, and that of tau so much divided
    by the root of the discriminant, which is sum g. The support is no decision to the weights: where it is open they
    are of second order. A weight whose z lies below tau by more than all of this is 0 in every type.
    """
    s, p = lift(scores), _current.get()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    probs = plain(_ops.entmax15)(s.v, None if allowed is None else ok, axis)
    if probs.size == 0:
        return ErrArray(probs, 0.0)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(np.where(probs > 0, a, 0.0), axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        z = np.where(ok & np.isfinite(s.v), s.v - np.where(np.isfinite(top), top, 0.0), -np.inf) / 2
        root = np.sqrt(probs)
        tau = np.max(np.where(probs > 0, z - root, -np.inf), axis=axis, keepdims=True)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(z), np.abs(z), 0.0)
        total, count = np.abs(over(z)), np.maximum(over(np.ones(z.shape)), 1.0)
        size = np.maximum(over(root), 1.0)
        g = 2 * p.gamma(s.shape[axis] + 8)
        cancelled = g * (total / count + (over(z * z) + total * total / count) / size + 1)
        most = (s.b + loose) / 2 + 2 * p.u * (far + s.b + loose) + cancelled + p.eta
        b = np.where(ok & ~(z - tau < -most), most * (2 * root + most) + 2 * p.u * probs, 0.0)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, np.where(np.isnan(b), np.inf, np.minimum(b, 1.0)))
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, _vjp.entmax15_vjp)
def entmax15_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """g (dp - D) with D the mean of dp weighted by g: an error that all dp share cancels, so those of g act on dp - D.

    Automatic differentiation knows g before it is squared and divides by sums of its own: some roundings more of each
    factor.
    """
    x, y, p = lift(probs), lift(dprobs), _current.get()

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        v, root = plain(_vjp.entmax15_vjp)(x.v, y.v, axis), np.sqrt(x.v)
        loose = np.maximum(root - np.sqrt(np.maximum(x.v - x.b, 0.0)), np.sqrt(x.v + x.b) - root)
        loose, size = loose + 4 * p.u * root, over(root)
        mean = over(root * y.v) / np.where(size == 0, 1.0, size)
        gap, spread = np.abs(y.v - mean), over((root + loose) * magnitude(y))
        least = np.where(size == 0, 1.0, np.maximum(size - over(loose), 0.0))
        moved = over(loose * gap) + over((root + loose) * y.b) + 2 * p.gamma(x.shape[axis] + 8) * spread
        inner = y.b + np.where(moved == 0, 0.0, moved / least)
        b = loose * gap + (root + loose) * (inner + 8 * p.u * (magnitude(y) + np.abs(mean) + inner))
        b = np.where(root + loose > 0, b + p.eta, 0.0)
        most = np.max(magnitude(y), axis=axis, keepdims=True, initial=0.0)  # g <= 1, and D lies among the dp
        b = np.fmin(b, np.where(root + loose > 0, np.abs(v) + 2 * most, 0.0))
    return jostled(ErrArray(v, np.where(np.isfinite(v), b, 0.0)))


@rule(FUNCTIONS, _ops.hardmax)
def hardmax(scores: Any, allowed: Any = None) -> ErrArray:
    """A decision, exact where the bounds of the scores leave one winner; else each that may win is 0 or 1.

    A score wins if it lies above all before it and is no smaller than any after it, so scores that are equal without an
    error have one winner, the first.
    """
    s = lift(scores)
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    hard = plain(_ops.hardmax)(s.v, None if allowed is None else ok)
    if hard.size == 0:
        return ErrArray(hard, 0.0)
    with np.errstate(invalid="ignore"):
        high, low = np.where(ok, s.v + s.b, -np.inf), np.where(ok, s.v - s.b, -np.inf)
        least = np.full((*s.shape[:-1], 1), -np.inf)
        before = np.maximum.accumulate(np.concatenate([least, low[..., :-1]], -1), axis=-1)
        after = np.maximum.accumulate(np.concatenate([least, low[..., :0:-1]], -1), axis=-1)[..., ::-1]
        may = ok & (high > before) & (high >= after)
    b = np.where(may & (np.sum(may, axis=-1, keepdims=True) > 1), 1.0, 0.0)
    lost = np.any(ok & ~np.isfinite(s.b), axis=-1, keepdims=True)
    return ErrArray(hard, np.where(lost, np.inf, b))


@rule(FUNCTIONS, _ops.straight_through)
def straight_through(hard: Any, soft: Any) -> ErrArray:
    """What is added is a number less itself."""
    return lift(hard)


# Derivatives of the activations ---------------------------------------------------------------------------------------


@rule(FUNCTIONS, _vjp.tanh_vjp)
def tanh_vjp(y: Any, dy: Any) -> ErrArray:
    """dy (1 - y^2), or (dy + dy y)(1 - y), which cancels at y = -1 and errs by 2 u |dy| there."""
    y, dy = lift(y), lift(dy)
    out = plain(_vjp.tanh_vjp)(y, dy)
    return ErrArray(out.v, out.b + 2 * _current.get().u * (magnitude(out) + magnitude(dy)))


@rule(FUNCTIONS, _vjp.softplus_vjp)
def softplus_vjp(x: Any, dy: Any) -> ErrArray:
    """dy sigmoid(x), or dy exp(x - softplus(x)), whose exponent errs by what its two terms do."""
    x, dy, u = lift(x), lift(dy), _current.get().u
    out, soft = plain(_vjp.softplus_vjp)(x, dy), plain(_ops.softplus)(magnitude(x))
    relative = np.expm1(u * (magnitude(x) + (1 + 2 * FUNCTION) * soft))
    return ErrArray(out.v, out.b + relative * magnitude(out))


@rule(FUNCTIONS, _vjp.silu_vjp)
def silu_vjp(x: Any, dy: Any) -> ErrArray:
    """dy s + dy x s (1 - s), or dy s (1 + x (1 - s)), which cancels: its parts err relative to their size."""
    x, dy, u = lift(x), lift(dy), _current.get().u
    out = plain(_vjp.silu_vjp)(x, dy)
    return ErrArray(out.v, out.b + 8 * u * magnitude(dy) * (1 + magnitude(x)) * plain(_ops.sigmoid)(x.v))


@rule(FUNCTIONS, _vjp.unit_vjp)
def unit_vjp(x: Any, size: Any, dy: Any, share: float) -> ErrArray:
    """Two terms that cancel where dy points along x; automatic differentiation makes each by other quotients.

    That is eight roundings more of the first term, and of the second the sum's and twice as many.
    """
    x, size, dy, p = lift(x), lift(size), lift(dy), _current.get()
    out = plain(_vjp.unit_vjp)(x, size, dy, share)
    along = np.sum(magnitude(dy) * magnitude(x), axis=-1, keepdims=True) * share / size.v**3
    more = 8 * p.u * magnitude(dy) / size.v + (p.gamma(x.shape[-1]) + (16 + FUNCTION) * p.u) * magnitude(x) * along
    return ErrArray(out.v, out.b + more)


@rule(FUNCTIONS, _ops.lerp)
def lerp(a: Any, b: Any, z: Any) -> ErrArray:
    """y = (1 - z) a + z b moves by (1 - z) da + z db + dz (b' - a'), so an error that a and b share counts once.

    Computed as it stands here or as a + z (b - a): two roundings before the last one in either form.
    """
    a, b, z, u = lift(a), lift(b), lift(z), _current.get().u
    gap, rest, part = np.abs(b.v - a.v) + a.b + b.b, np.abs(1 - z.v), np.abs(z.v)
    moved = rest * a.b + part * b.b + z.b * gap
    return rounded(
        a.v + z.v * (b.v - a.v), moved + 2 * u * np.maximum(part * gap, rest * magnitude(a) + part * magnitude(b))
    )


@rule(FUNCTIONS, _vjp.rest_of)
def rest_of(z: Any, dy: Any) -> ErrArray:
    """(1 - z) dy moves by (1 - z) d(dy) + dz dy, so an error of dy counts once; computed so or as dy - z dy."""
    z, dy, u = lift(z), lift(dy), _current.get().u
    rest = np.abs(1 - z.v)
    moved = rest * dy.b + z.b * magnitude(dy)
    return rounded(dy.v - z.v * dy.v, moved + 2 * u * (magnitude(z) + rest) * magnitude(dy))


FUNCTIONS[_vjp.sigmoid_vjp] = lambda y, dy: plain(_vjp.sigmoid_vjp)(lift(y), lift(dy))


# Copies of the reference ----------------------------------------------------------------------------------------------


def adopt(tree: str) -> None:
    """Give the rules to a copy of attn_np that is imported under another name.

    A primitive whose body was edited in the copy has no rule: its body itself then runs on error-carrying arrays, with
    wider bounds.
    """
    for whole in (_masks, _ops, _vjp):
        copy = sys.modules.get(whole.__name__.replace("attn_np", tree, 1))
        if copy is None:  # not edited: the copy uses the original
            continue
        for name, function in vars(whole).items():
            if getattr(function, "__module__", "") == whole.__name__ and function in FUNCTIONS:
                other = getattr(copy, name)
                same = code_of(plain(other)) == code_of(plain(function))
                edited = partial(like_softmax, plain(other)) if name == "softmax" else plain(other)
                FUNCTIONS[other] = FUNCTIONS[function] if same else edited


def like_softmax(body: Callable[..., Any], scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """A softmax with a mistake in it: errors of the scores act on the weights as factors, as in every such form.

    The operations of its body one by one would know nothing of a weight that is much smaller than the exponentials.
    """
    s, p = lift(scores), _current.get()
    allowed = allowed.value if isinstance(allowed, Flag) else allowed
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        v, narrow = body(s.v, allowed, axis), body(s.v.astype(_ops.DTYPES[p.work]), allowed, axis)
        v = np.where(np.isfinite(narrow), v, narrow)  # what overflows does so in the candidate's type
        n = max(s.shape[axis], 1)
        far = np.max(np.abs(np.where(np.isfinite(s.v), s.v, 0.0)), initial=0.0, axis=axis, keepdims=True)
        loose = np.max(s.b, initial=0.0, axis=axis, keepdims=True)
        relative = np.expm1(2 * loose + 2 * p.u * far) + p.gamma(n) + (4 + FUNCTION) * p.u
        return ErrArray(v, np.where(np.isfinite(v), np.abs(v) * relative + 4 * p.eta, 0.0))


def disown(tree: str) -> None:
    """Forget a copy that is no longer needed."""
    for function in [f for f in FUNCTIONS if getattr(f, "__module__", "").partition(".")[0] == tree]:
        del FUNCTIONS[function]


def code_of(function: Any) -> tuple[Any, ...]:
    """What a function does, wherever its text stands."""

    def content(code: Any) -> tuple[Any, ...]:
        consts = tuple(content(c) if hasattr(c, "co_code") else c for c in code.co_consts)
        return code.co_code, consts, code.co_names, code.co_varnames

    return content(function.__code__)


# Judging --------------------------------------------------------------------------------------------------------------


def delivered(x: ErrArray, dtype: str, always: bool = False) -> ErrArray:
    """The same value after the one rounding to the type it is returned in; float32 is computed in, not rounded to."""
    if dtype in ("float64", "float32") and not always:
        return x
    with np.errstate(over="ignore"):
        b = x.b + UNIT[dtype] * magnitude(x) + np.where(magnitude(x) == 0, 0.0, UNDERFLOW[dtype])
    return ErrArray(x.v, np.where(magnitude(x) <= LARGEST[dtype], b, np.inf))


def widened(x: Any) -> np.ndarray:
    """Any float array as float64, exactly; booleans and integers as they are."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return x.astype(np.float64) if x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16 else x
