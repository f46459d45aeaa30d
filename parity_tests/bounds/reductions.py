"""Rules for selecting, moving and joining arrays, for sums, and for products of matrices."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from attn_np import ops
from attn_np.attention import masks
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, Flag, lift, magnitude, nearest, plain, rounded, rule
from parity_tests.bounds.precision import UNIT, promised, rounding_now

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


@rule(FUNCTIONS, masks.hide_neg_inf)
def shown(allowed: Any, bias: Any) -> Any:
    """Where a bias is -inf it is so without an error: what it hides is a plain array."""
    return plain(masks.hide_neg_inf)(allowed, bias.v if isinstance(bias, ErrArray) else bias)


@rule(FUNCTIONS, ops.constants)
def constants(values: Any, like: Any) -> ErrArray:
    """Each number is rounded to the working type."""
    return lift(plain(ops.constants)(values, like))


@rule(FUNCTIONS, np.sum)
def summed(x: Any, axis: Any = None, keepdims: bool = False) -> ErrArray:
    """Bounds add; the additions themselves err by gamma(n - 1) of the sum of the absolute values."""
    x = lift(x)
    v = np.sum(x.v, axis=axis, keepdims=keepdims)
    n = max(x.size // max(np.size(v), 1), 1)
    spread = np.sum(magnitude(x), axis=axis, keepdims=keepdims)
    return rounded(v, np.sum(x.b, axis=axis, keepdims=keepdims) + promised().gamma(n - 1) * spread, 0.0)


@rule(FUNCTIONS, np.cumsum)
def running(x: ErrArray, axis: int) -> ErrArray:
    """Every entry is a sum of those before it."""
    n = max(x.shape[axis], 1)
    most = np.cumsum(magnitude(x), axis=axis)
    return rounded(np.cumsum(x.v, axis=axis), np.cumsum(x.b, axis=axis) + promised().gamma(n - 1) * most, 0.0)


@rule(FUNCTIONS, np.max, np.amax)
def largest(x: ErrArray, axis: Any = None, keepdims: bool = False, **initial: Any) -> ErrArray:
    v, high, low = (np.max(a, axis=axis, keepdims=keepdims, **initial) for a in (x.v, x.v + x.b, x.v - x.b))
    with np.errstate(invalid="ignore"):
        return ErrArray(v, np.where(np.isinf(v), 0.0, np.maximum(high - v, v - low)))


FUNCTIONS[ops.amax_detached] = lambda x, axis: largest(x, axis)


def _moving(function: Callable[..., Any]) -> Callable[..., ErrArray]:
    return lambda x, *a, **k: ErrArray(function(x.v, *a, **k), function(x.b, *a, **k))


def _joining(function: Callable[..., Any]) -> Callable[..., ErrArray]:
    def apply(arrays: Any, *a: Any, **k: Any) -> ErrArray:
        lifted = [lift(x) for x in arrays]
        return ErrArray(function([x.v for x in lifted], *a, **k), function([x.b for x in lifted], *a, **k))

    return apply


for _function in (np.reshape, np.transpose, np.swapaxes, np.moveaxis, np.broadcast_to, np.expand_dims, np.squeeze,
                  np.repeat, np.flip, np.take, np.take_along_axis):  # fmt: skip
    FUNCTIONS[_function] = _moving(_function)
for _function in (np.concatenate, np.stack):
    FUNCTIONS[_function] = _joining(_function)
FUNCTIONS[np.shape], FUNCTIONS[np.ndim] = (lambda x: x.shape), (lambda x: x.ndim)


# Products -------------------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, ops.einsum)
def einsum(spec: str, x: Any, y: Any) -> ErrArray:
    """sum (|x| b_y + b_x (|y| + b_y)) + gamma(n + 2) sum |x||y|, with magnitudes for absolute values.

    Two more than n: a compiler may move a scale into one of the factors. Where x holds softmax weights and their axis
    is summed, sum_j p_j (y_j - o) = 0 for the result o, so that only the spread of y around o is moved by errors in the
    exponents (centred propagation), and the smaller of the two bounds holds.
    """
    dot = plain(ops.einsum)
    x, y, p = lift(x), lift(y), promised()
    if p.product and rounding_now():
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


@rule(FUNCTIONS, vjp.sum_grads)
def sum_grads(*terms: Any) -> ErrArray:
    """A sum of a few terms in any order: every partial sum is rounded."""
    lifted = [lift(x) for x in terms if x is not None]
    v, b = np.sum([x.v for x in lifted], axis=0), np.sum([x.b for x in lifted], axis=0)
    most = np.sum([magnitude(x) for x in lifted], axis=0)
    return rounded(v, b + len(lifted) * promised().u * most, 0.0)
