"""Error-carrying arrays: a float64 value and, for every element, a bound on how far a correct implementation may be.

The reference itself runs on them, through NumPy's own dispatch protocols (`__array_ufunc__`, NEP 13, and
`__array_function__`, NEP 18), so every variant, intermediate and gradient gets its tolerance from its own code.
`ErrArray(v, b)` says: any implementation that performs these operations in the precision at hand, sums in any order and
uses one of the algebraic forms that a rule names, ends within b of v, element by element. The rules, one for each
operation, stand in the modules beside this one; importing the package registers them.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from attn_np import ops
from parity_tests.bounds.precision import FUNCTION, LARGEST, UNDERFLOW, UNIT, current_noise, promised, rounding_now


class ErrArray(NDArrayOperatorsMixin):
    """Value `v` and elementwise bound `b`; immutable. `soft` carries what a softmax knows about its own errors, and
    `again` how much more its weights err, relative to themselves, when they are recomputed.
    """

    __slots__ = ("again", "b", "soft", "v")

    def __init__(self, v: Any, b: Any, soft: Any = None, again: Any = None) -> None:
        self.v, self.soft, self.again = np.asarray(v, np.float64), soft, again
        b = np.asarray(b, np.float64)
        self.b = b if b.shape == self.v.shape else np.broadcast_to(b, self.v.shape)

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
        return np.sum(self, axis)

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

    def __invert__(self) -> "Flag":
        return Flag(~self.value, self.undecided)

    def __or__(self, other: Any) -> "Flag":
        """Of several conditions: open where one is and no other is certainly true."""
        other = other if isinstance(other, Flag) else Flag(other, False)
        return ~(~self & ~other)

    __ror__ = __or__
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
    """The function itself, without the dispatch that `dispatches_on_array_type` put before it."""
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
        kept = x.astype(ops.DTYPES[promised().work]).astype(np.float64)
        return ErrArray(x, np.where(np.isfinite(kept), np.abs(x - kept), 0.0))


def rounded(v: np.ndarray, b: np.ndarray, roundings: float = 1.0) -> ErrArray:
    """The result of an operation: its propagated bound, plus its own rounding; no bound beyond overflow.

    Sums, products and quotients that are 0 without an error are so in every type; functions may miss.
    """
    p = promised()
    with np.errstate(invalid="ignore", over="ignore"):
        # What is infinite or NaN in float64 without an error in what it was made of is so in every type.
        exact = ~np.isfinite(v) & ~np.isposinf(b)
        exact = exact | ((v == 0) & (b == 0)) if roundings < FUNCTION else exact
        b = b + roundings * p.u * (np.abs(v) + b) + p.eta
        return jostled(ErrArray(v, np.where(exact, 0.0, np.where(np.abs(v) + b <= LARGEST[p.work], b, np.inf))))


def magnitude(x: ErrArray) -> np.ndarray:
    return np.abs(x.v) + x.b


# Rounding -------------------------------------------------------------------------------------------------------------


def nearest(v: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded to as many binary digits as a type has, whatever their size."""
    with np.errstate(invalid="ignore"):
        part, power = np.frexp(v)
        return np.ldexp(np.round(part / UNIT[dtype]) * UNIT[dtype], power)


def jostled(x: "ErrArray") -> "ErrArray":
    """A result as it is; under `noise` a value within its bound, and under `roundings` the rounded one, without one."""
    if rounding_now():
        return ErrArray(nearest(x.v, promised().work), 0.0)
    rng = current_noise()
    if rng is None or not x.b.any():
        return x
    b = np.where(np.isfinite(x.b) & np.isfinite(x.v), x.b, 0.0)
    return ErrArray(x.v + b * rng.uniform(-1, 1, x.shape), 0.0)


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
