"""Derivatives of the reference along a direction, forward mode, with a bound for every number.

`Dual(v, d)` is a value and its tangent, both error-carrying. The reference's own code runs on them: its forward gives
J u, its backward written by hand gives the derivative of the gradient, H u. Each rule is the product or chain rule in
operations that derive bounds, so what any implementation may err in a tangent follows from its own formula too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from attn_np import ops
from attn_np.attention import chosen, masks
from attn_np.normalizers import sparse
from attn_np.ops import vjp
from parity_tests.bounds.error_array import ErrArray, lift, magnitude, rounded, rule

# Roundings that another algebraic form of a tangent may have beside those here, each of the size of its terms:
# automatic differentiation knows a softmax as e / t, whose gradient has two quotients; each is differentiated into up
# to three terms of at most four roundings, and eight are left for their sums.
FORMS = 2 * 3 * 4 + 8


class Dual(NDArrayOperatorsMixin):
    """Value `v` and tangent `d`."""

    __slots__ = ("d", "v")

    def __init__(self, v: Any, d: Any) -> None:
        self.v, self.d = lift(v), lift(d)

    shape = property(lambda self: self.v.shape)
    ndim = property(lambda self: self.v.ndim)
    size = property(lambda self: self.v.size)
    dtype = property(lambda self: self.v.dtype)

    def __getitem__(self, index: Any) -> "Dual":
        return Dual(self.v[index], self.d[index])

    def reshape(self, *shape: Any) -> "Dual":
        return Dual(self.v.reshape(*shape), self.d.reshape(*shape))

    def transpose(self, *axes: Any) -> "Dual":
        return Dual(self.v.transpose(*axes), self.d.transpose(*axes))

    def swapaxes(self, i: int, j: int) -> "Dual":
        return Dual(self.v.swapaxes(i, j), self.d.swapaxes(i, j))

    def sum(self, axis: int) -> "Dual":
        return Dual(self.v.sum(axis), self.d.sum(axis))

    def astype(self, dtype: Any, **_: Any) -> "Dual":
        return Dual(self.v.astype(dtype), self.d.astype(dtype))

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc not in UFUNCS or kwargs:
            return NotImplemented
        return UFUNCS[ufunc](*map(dual, args))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in FUNCTIONS:
            raise TypeError(f"{function.__name__} has no rule for tangents")
        return FUNCTIONS[function](*args, **kwargs)


UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def dual(x: Any) -> Dual:
    """A constant has no tangent."""
    return x if isinstance(x, Dual) else Dual(x, ErrArray(np.zeros(np.shape(x)), 0.0))


def in_any_form(d: ErrArray, *terms: ErrArray) -> ErrArray:
    """A tangent with room for the other forms in which the sum of its terms can be computed."""
    size = np.sum([np.broadcast_to(magnitude(x), d.shape) for x in terms], axis=0)
    return ErrArray(d.v, d.b + rounded(size, np.zeros(d.shape), FORMS).b)


# Arithmetic -----------------------------------------------------------------------------------------------------------

rule(UFUNCS, np.add)(lambda x, y: Dual(x.v + y.v, x.d + y.d))
rule(UFUNCS, np.subtract)(lambda x, y: Dual(x.v - y.v, x.d - y.d))
rule(UFUNCS, np.negative)(lambda x: Dual(-x.v, -x.d))
rule(UFUNCS, np.multiply)(lambda x, y: Dual(x.v * y.v, x.v * y.d + x.d * y.v))


@rule(UFUNCS, np.divide)
def divide(x: Dual, y: Dual) -> Dual:
    q = x.v / y.v
    return Dual(q, (x.d - q * y.d) / y.v)


def comparison(function: Callable[..., Any]) -> Callable[[Dual, Dual], np.ndarray]:
    """Where random numbers are far from equal, as they are, a comparison has no tangent."""
    return lambda x, y: function(x.v.v, y.v.v)


for _compare in (np.greater, np.greater_equal, np.less, np.less_equal):
    UFUNCS[_compare] = comparison(_compare)


@rule(UFUNCS, np.exp)
def exponential(x: Dual) -> Dual:
    y = np.exp(x.v)
    return Dual(y, y * x.d)


@rule(UFUNCS, np.log)
def logarithm(x: Dual) -> Dual:
    return Dual(np.log(x.v), x.d / x.v)


@rule(UFUNCS, np.sqrt)
def square_root(x: Dual) -> Dual:
    y = np.sqrt(x.v)
    return Dual(y, x.d / (y + y))


@rule(UFUNCS, np.tanh)
def tanh(x: Dual) -> Dual:
    y = np.tanh(x.v)
    return Dual(y, vjp.tanh_vjp(y, x.d))


@rule(FUNCTIONS, ops.sigmoid)
def sigmoid(x: Dual) -> Dual:
    y = ops.sigmoid(x.v)
    return Dual(y, vjp.sigmoid_vjp(y, x.d))


@rule(FUNCTIONS, ops.softplus)
def softplus(x: Dual) -> Dual:
    return Dual(ops.softplus(x.v), vjp.softplus_vjp(x.v, x.d))


@rule(FUNCTIONS, vjp.softplus_vjp)
def softplus_vjp(x: Dual, dy: Dual) -> Dual:
    """dy s for s = sigmoid(x), which has the slope s (1 - s)."""
    one, two = vjp.softplus_vjp(x.v, dy.d), vjp.sigmoid_vjp(ops.sigmoid(x.v), dy.v * x.d)
    return Dual(vjp.softplus_vjp(x.v, dy.v), in_any_form(one + two, one, ops.sigmoid(x.v) * dy.v * x.d))


@rule(FUNCTIONS, vjp.silu_vjp)
def silu_vjp(x: Dual, dy: Dual) -> Dual:
    """dy (s + x s (1 - s)), whose slope is s (1 - s) (2 + x (1 - 2 s))."""
    s = ops.sigmoid(x.v)
    one, slope = vjp.silu_vjp(x.v, dy.d), s * (1.0 - s)
    two, three = slope * dy.v * x.d, slope * (1.0 - 2.0 * s) * x.v * dy.v * x.d
    terms = (s * dy.d, x.v * s * dy.d, s * dy.v * x.d, x.v * s * dy.v * x.d)
    return Dual(vjp.silu_vjp(x.v, dy.v), in_any_form(one + two + two + three, *terms))


@rule(FUNCTIONS, vjp.divide_by_norm_vjp)
def divide_by_norm_vjp(x: Dual, size: Dual, dy: Dual, share: float) -> Dual:
    """dy / size - x S share / size^3 with S = sum dy x changes by what each of its factors does."""
    cube = size.v * size.v * size.v
    along = np.sum(dy.v * x.v, axis=-1, keepdims=True) * share / cube
    moved = np.sum(dy.d * x.v + dy.v * x.d, axis=-1, keepdims=True) * share / cube
    terms = (
        dy.d / size.v,
        -(dy.v / size.v * size.d / size.v),
        -(x.d * along),
        -(x.v * moved),
        3.0 * (x.v * along * size.d / size.v),
    )
    return Dual(vjp.divide_by_norm_vjp(x.v, size.v, dy.v, share), in_any_form(vjp.sum_grads(*terms), *terms))


@rule(FUNCTIONS, vjp.tanh_vjp)
def tanh_vjp(y: Dual, dy: Dual) -> Dual:
    """dy (1 - y^2)."""
    one, two = vjp.tanh_vjp(y.v, dy.d), -2.0 * y.v * y.d * dy.v
    return Dual(vjp.tanh_vjp(y.v, dy.v), in_any_form(one + two, dy.d, two))


@rule(FUNCTIONS, vjp.sigmoid_vjp)
def sigmoid_vjp(y: Dual, dy: Dual) -> Dual:
    """dy y (1 - y)."""
    one, two = vjp.sigmoid_vjp(y.v, dy.d), dy.v * y.d * (1.0 - 2.0 * y.v)
    return Dual(vjp.sigmoid_vjp(y.v, dy.v), in_any_form(one + two, one, dy.v * y.d))


# Moving and joining ---------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, np.where)
def where(condition: Any, x: Any, y: Any) -> Dual:
    x, y = dual(x), dual(y)
    return Dual(np.where(condition, x.v, y.v), np.where(condition, x.d, y.d))


def _linear(function: Callable[..., Any]) -> Callable[..., Dual]:
    return lambda x, *a, **k: Dual(function(x.v, *a, **k), function(x.d, *a, **k))


def _joining(function: Callable[..., Any]) -> Callable[..., Dual]:
    def apply(arrays: Any, *a: Any, **k: Any) -> Dual:
        parts = [dual(x) for x in arrays]
        return Dual(function([x.v for x in parts], *a, **k), function([x.d for x in parts], *a, **k))

    return apply


for _function in (np.sum, np.cumsum, np.broadcast_to, np.take, np.take_along_axis):
    FUNCTIONS[_function] = _linear(_function)
for _function in (np.concatenate, np.stack):
    FUNCTIONS[_function] = _joining(_function)
FUNCTIONS[np.shape] = lambda x: x.shape


@rule(FUNCTIONS, masks.hide_neg_inf)
def shown(allowed: Any, bias: Dual) -> Any:
    return masks.hide_neg_inf(allowed, bias.v)


@rule(FUNCTIONS, ops.constants)
def constants(values: Any, like: Dual) -> Dual:
    return dual(ops.constants(values, like.v))


@rule(FUNCTIONS, ops.einsum)
def einsum(spec: str, x: Any, y: Any) -> Dual:
    x, y = dual(x), dual(y)
    return Dual(ops.einsum(spec, x.v, y.v), ops.einsum(spec, x.v, y.d) + ops.einsum(spec, x.d, y.v))


@rule(FUNCTIONS, vjp.sum_grads)
def sum_grads(*terms: Any) -> Dual:
    terms = tuple(dual(x) for x in terms if x is not None)
    return Dual(vjp.sum_grads(*(x.v for x in terms)), vjp.sum_grads(*(x.d for x in terms)))


# Softmax and gates ----------------------------------------------------------------------------------------------------


@rule(UFUNCS, np.maximum)
def maximum(x: Any, y: Any) -> Dual:
    """The larger number, with its tangent."""
    x, y = dual(x), dual(y)
    first = x.v.v >= y.v.v
    return Dual(np.maximum(x.v, y.v), np.where(first, x.d, y.d))


@rule(FUNCTIONS, ops.amax_detached)
def amax_detached(x: Dual, axis: int) -> Dual:
    """Without a gradient, as it is defined."""
    return dual(ops.amax_detached(x.v, axis))


@rule(FUNCTIONS, ops.softmax)
def softmax(scores: Dual, allowed: Any = None, axis: int = -1) -> Dual:
    """The Jacobian diag(p) - p p^T is its own transpose."""
    p = ops.softmax(scores.v, allowed, axis)
    return Dual(p, vjp.softmax_vjp(p, scores.d, axis))


@rule(FUNCTIONS, vjp.softmax_vjp)
def softmax_vjp(probs: Dual, dprobs: Dual, axis: int = -1) -> Dual:
    """ds = p (dp - D) with D = sum p dp changes by p (dp' - sum p dp') + p' (dp - D) - p sum p' dp."""
    p, dp = probs.v, dprobs.v
    mean = np.sum(p * dp, axis=axis, keepdims=True)
    moved = p * np.sum(probs.d * dp, axis=axis, keepdims=True)
    d = vjp.softmax_vjp(p, dprobs.d, axis) + (probs.d * (dp - mean) - moved)
    sums = [p * np.sum(abs(x), axis=axis, keepdims=True) for x in (p * dprobs.d, probs.d * dp)]
    return Dual(vjp.softmax_vjp(p, dp, axis), in_any_form(d, *sums, p * dprobs.d, probs.d * dp, probs.d * mean))


@rule(FUNCTIONS, sparse.sparsemax)
def sparsemax(scores: Dual, allowed: Any = None, axis: int = -1) -> Dual:
    """Linear where the support stays: a direction is mapped as a gradient is, less its mean over the support."""
    p = sparse.sparsemax(scores.v, allowed, axis)
    return Dual(p, vjp.sparsemax_vjp(p, scores.d, axis))


@rule(FUNCTIONS, vjp.sparsemax_vjp)
def sparsemax_vjp(probs: Dual, dprobs: Dual, axis: int = -1) -> Dual:
    """The support does not move with the weights."""
    return Dual(vjp.sparsemax_vjp(probs.v, dprobs.v, axis), vjp.sparsemax_vjp(probs.v, dprobs.d, axis))


@rule(FUNCTIONS, sparse.entmax15)
def entmax15(scores: Dual, allowed: Any = None, axis: int = -1) -> Dual:
    """The Jacobian diag(g) - g g^T / sum g, with g the roots of the weights, is its own transpose."""
    p = sparse.entmax15(scores.v, allowed, axis)
    return Dual(p, vjp.entmax15_vjp(p, scores.d, axis))


@rule(FUNCTIONS, vjp.entmax15_vjp)
def entmax15_vjp(probs: Dual, dprobs: Dual, axis: int = -1) -> Dual:
    """ds = g (dp - D) with D = sum g dp / G and G = sum g changes by g (dp' - D') + g' (dp - D).

    2 g g' = p', so where the weight is 0 the root stays, and D' has one part more: (sum g' dp - D sum g') / G.
    """
    p, dp = probs.v, dprobs.v
    held = p.v > 0
    root: Any = np.sqrt(np.where(held, p, 1.0))
    turned: Any = np.where(held, probs.d / (root + root), 0.0)
    root = np.where(held, root, 0.0)
    size = np.sum(root, axis=axis, keepdims=True)
    size = np.where(size.v > 0, size, 1.0)
    mean = np.sum(root * dp, axis=axis, keepdims=True) / size
    moved = np.sum(turned * (dp - mean), axis=axis, keepdims=True) / size
    d = vjp.entmax15_vjp(p, dprobs.d, axis) + (turned * (dp - mean) - root * moved)
    sums = [root * (np.sum(abs(x), axis=axis, keepdims=True) / size) for x in (root * dprobs.d, turned * dp)]
    sums.append(root * (np.sum(abs(turned), axis=axis, keepdims=True) * abs(mean) / size))
    return Dual(vjp.entmax15_vjp(p, dp, axis), in_any_form(d, *sums, root * dprobs.d, turned * dp, turned * mean))


@rule(FUNCTIONS, sparse.hardmax)
def hardmax(scores: Dual, allowed: Any = None) -> Dual:
    """Without a gradient, as it is defined."""
    return dual(sparse.hardmax(scores.v, allowed))


@rule(FUNCTIONS, chosen.top_k_indices)
def top_k_indices(scores: Dual, allowed: Any, count: int) -> Any:
    """Numbers of places, which have no tangent."""
    return chosen.top_k_indices(scores.v, allowed, count)


@rule(FUNCTIONS, sparse.straight_through)
def straight_through(hard: Any, soft: Any) -> Dual:
    """The tangent is that of the other array, as it is defined."""
    return Dual(dual(hard).v, dual(soft).d)


@rule(FUNCTIONS, vjp.part_of_softmax)
def part_of_softmax(scores: Dual, top: Any, total: Any, parts: int) -> Dual:
    """p = e^{s - m} / l changes by p (s' - l' / l); m has no tangent."""
    top, total = dual(top), dual(total)
    p = vjp.part_of_softmax(scores.v, top.v, total.v, parts)
    gone = total.d / total.v
    return Dual(p, in_any_form(p * (scores.d - gone), p * scores.d, p * gone))


@rule(FUNCTIONS, vjp.part_of_softmax_vjp)
def part_of_softmax_vjp(probs: Dual, dprobs: Dual, share: Dual, parts: int) -> Dual:
    """p (dp - D) changes by p (dp' - D') + p' (dp - D)."""
    p, dp, mean = probs.v, dprobs.v, share.v
    d = p * (dprobs.d - share.d) + probs.d * (dp - mean)
    terms = p * dprobs.d, p * share.d, probs.d * dp, probs.d * mean
    return Dual(vjp.part_of_softmax_vjp(p, dp, mean, parts), in_any_form(d, *terms))


@rule(FUNCTIONS, ops.lerp)
def lerp(a: Any, b: Any, z: Any) -> Dual:
    a, b, z = dual(a), dual(b), dual(z)
    return Dual(ops.lerp(a.v, b.v, z.v), ops.lerp(a.d, b.d, z.v) + z.d * (b.v - a.v))


@rule(FUNCTIONS, vjp.one_minus_z_times)
def one_minus_z_times(z: Any, dy: Any) -> Dual:
    z, dy = dual(z), dual(dy)
    return Dual(vjp.one_minus_z_times(z.v, dy.v), vjp.one_minus_z_times(z.v, dy.d) - z.d * dy.v)


@rule(FUNCTIONS, ops.interpolate_last)
def interpolate_last(x: Any, position: Any) -> Dual:
    x, position = dual(x), dual(position)
    moved = ops.interpolate_last(x.d, position.v) + position.d * vjp.slope_last(x.v, position.v)
    return Dual(ops.interpolate_last(x.v, position.v), moved)


@rule(FUNCTIONS, vjp.slope_last)
def slope_last(x: Any, position: Any) -> Dual:
    """A slope is the same all along its line."""
    x, position = dual(x), dual(position)
    return Dual(vjp.slope_last(x.v, position.v), vjp.slope_last(x.d, position.v))


@rule(FUNCTIONS, vjp.interpolated_entries_vjp)
def interpolated_entries_vjp(position: Any, dy: Any, n: int) -> Dual:
    """What a position moves on by, its entry loses and the next one gets; after the last there is none."""
    position, dy = dual(position), dual(dy)
    before = (np.floor(position.v.v)[..., None] - np.arange(n)).astype(int)
    turned = np.where(position.v.v[..., None] < n - 1, (before == -1).astype(float) - (before == 0), 0.0)
    moved = ops.einsum("bhts,bhtsx->bhtx", dy.v * position.d, turned)
    return Dual(
        vjp.interpolated_entries_vjp(position.v, dy.v, n),
        vjp.interpolated_entries_vjp(position.v, dy.d, n) + moved,
    )
