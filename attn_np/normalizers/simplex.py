"""Weights from scores: points of the simplex, by softmax or by entmax, which may leave keys out."""

from math import log
from typing import Any

import numpy as np

import attn_np.ops as ops
from attn_np.contract import _functions as functions_contract
from attn_np.normalizers.sparse import entmax15, sparsemax
from attn_np.ops import (
    Array,
    Tape,
    amax_detached,
    any_over,
    arange,
    argmax,
    broadcast_to,
    detach,
    dispatches_on_array_type,
    dtype_name,
    exp,
    iterate,
    log1p,
    maximum,
    to_dtype,
    upcast,
    where,
    zeros,
)
from attn_np.ops.choices import largest_first
from attn_np.ops.specs import checked_specs
from attn_np.ops.vjp import defvjp, entmax15_vjp, softmax_vjp, sparsemax_vjp

# After this many halvings an interval of length log n is shorter than a rounding error.
HALVINGS = {"float64": 60, "float32": 32}
COUNT_HALVINGS = 31  # and one of as many whole numbers as there are scores holds only one
LOG_MAX = {"float64": 708.0, "float32": 87.0}  # the exponential is a number in this type, with one to spare


@dispatches_on_array_type
def bisected_entmax(scores: Array, allowed: Array | None, alpha: float) -> Array:
    """Entmax of the allowed scores over the last axis, for alpha from 1 to 2 (Peters et al. 2019, algorithm 1).

    The weights are (1 + (alpha - 1) (z - threshold))^(1 / (alpha - 1)), where z is the score less the largest, and the
    threshold, from 0 (the largest weighs 1) to log n (none weighs more than 1 / n), makes them add up to 1. For alpha
    -> 1 they are exp(z - threshold). Where nothing is allowed the weights are 0; allowed scores that are all -inf give
    NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(z, -1)[..., None]
    overflowed = top == float("-inf")
    z = z - where(overflowed, 0.0, top)

    def weights(z: Array, threshold: Array) -> Array:
        base = (alpha - 1.0) * (z - threshold)
        positive = base > -1.0
        return where(positive, exp(log1p(where(positive, base, 0.0)) / (alpha - 1.0)), 0.0)

    def halve(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2.0
        above_one = weights(detach(z), middle).sum(-1)[..., None] >= 1.0
        return where(above_one, middle, low), where(above_one, high, middle)

    low = where(overflowed, 0.0, where(overflowed, top, 0.0))  # zeros that lie on a mesh as the scores do
    threshold, _ = iterate(halve, (low, low + log(z.shape[-1])), HALVINGS[dtype_name(z)])
    # The threshold has no gradient so far. It moves with the z by the slopes p^(2 - alpha): the weights' sum stays 1.
    probs = detach(weights(z, threshold))
    slope = where(probs > 0.0, exp((2.0 - alpha) * ops.log(where(probs > 0.0, probs, 1.0))), 0.0)
    total = slope.sum(-1)[..., None]
    z_on_support = where(slope > 0.0, z, 0.0)
    shift = ((z_on_support - detach(z_on_support)) * slope).sum(-1)[..., None]
    threshold = threshold + shift / where(total == 0.0, 1.0, total)
    if allowed is not None:
        overflowed = overflowed & any_over(allowed, (allowed.ndim - 1,))[..., None]
    return where(overflowed | (top < float("inf")) ^ True, float("nan"), weights(z, threshold))


@dispatches_on_array_type
def steep_entmax(scores: Array, allowed: Array | None, alpha: float) -> Array:
    """Entmax of the allowed scores over the last axis, for any alpha above 2.

    Above the threshold weights rise so steeply that its rounding would show: at alpha 20 a score 1e-16 above it weighs
    0.17. So weights are counted from the smallest, y. One whose score is d above that of y is the norm
    (y^power + w^power)^(1 / power), where power = alpha - 1 and w = (power d)^(1 / power). y makes them add up to 1; it
    is known to a rounding, since their sum rises with it at least as fast. The support is as many of the largest scores
    as have w that add up to less than 1.
    """
    power = alpha - 1.0
    z = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(z, -1)[..., None]
    undefined = (top > float("-inf")) & (top < float("inf")) ^ True
    z = where(undefined, 0.0, z)
    fixed = detach(z)
    near = fixed - where(undefined, 0.0, top) > -1.0 / power  # a score further from the largest has no weight
    ordered, place = largest_first(where(near, fixed, float("-inf"))), arange(z.shape[-1], z)

    def smallest_of(count: Array) -> Array:
        return where(place == count - 1, ordered, 0.0).sum(-1)[..., None]

    def weights_above(score: Array) -> Array:
        above = near & (fixed > score)
        return where(above, exp((ops.log(where(above, fixed - score, 1.0)) + log(power)) / power), 0.0)

    def halve_count(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        fits = weights_above(smallest_of(middle)).sum(-1)[..., None] < 1.0
        return where(fits, middle, low), where(fits, high, middle)

    num_near = near.sum(-1)[..., None]
    count, _ = iterate(halve_count, (where(num_near > 0, 1, 1), num_near + 1), COUNT_HALVINGS)
    smallest = smallest_of(count)
    w, support = weights_above(smallest), near & (fixed >= smallest)

    def weights(y: Array) -> Array:
        larger = maximum(w, y)
        ratio = where(w > y, y, w) / where(larger > 0.0, larger, 1.0)
        log_ratio = maximum(ops.log(where(ratio > 0.0, ratio, 1.0)), -LOG_MAX["float64"] / power)
        raised = where(ratio > 0.0, exp(log_ratio * power), 0.0)
        return where(support, larger * exp(log1p(raised) / power), 0.0)

    def halve(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2.0
        below_one = weights(middle).sum(-1)[..., None] <= 1.0
        return where(below_one, middle, low), where(below_one, high, middle)

    low = zeros(top.shape, top)
    y, _ = iterate(halve, (low, 1.0 / where(support, low + 1.0, 0.0).sum(-1)[..., None]), HALVINGS[dtype_name(z)])
    probs = weights(y)
    # Scores have no gradient so far. The slope p^(2 - alpha) of the smallest weight may be any number: it is never
    # used alone, only as a share of all slopes, and what the other scores get is taken from the smallest.
    support = probs > 0.0
    at_smallest = place == argmax(where(support, -probs, -2.0), -1)[..., None]
    logs = ops.log(where(support, probs, 1.0))
    slope = where(
        support & (at_smallest ^ True),
        exp((alpha - 2.0) * -maximum(logs, -LOG_MAX[dtype_name(z)] / (alpha - 2.0))),
        0.0,
    )
    gap = where(at_smallest, logs, 0.0).sum(-1)[..., None] - logs
    share = where(support, exp((alpha - 2.0) * maximum(gap, -LOG_MAX["float64"] / (alpha - 2.0))), 0.0)
    share = share / share.sum(-1)[..., None]
    shift = where(support, z, 0.0)
    shift = shift - detach(shift)
    shift = slope * (shift - where(at_smallest, shift, 0.0).sum(-1)[..., None])
    probs = probs + (shift - share * shift.sum(-1)[..., None])
    if allowed is not None:
        probs = where(undefined & (any_over(allowed, (allowed.ndim - 1,))[..., None] ^ True), 0.0, probs)
        undefined = undefined & any_over(allowed, (allowed.ndim - 1,))[..., None]
    return where(undefined, float("nan"), probs)


def entmax_over(scores: Array, allowed: Array | None, alpha: float, axis: int) -> Array:
    """Entmax over an axis: at alpha 1, 1.5 and 2 in closed form, at others by halving an interval."""
    if scores.shape[axis] == 0:
        return scores
    if alpha in (1, 1.5, 2):
        return {1: ops.softmax, 1.5: entmax15, 2: sparsemax}[alpha](scores, allowed, axis)
    allowed = None if allowed is None else broadcast_to(allowed, scores.shape).swapaxes(axis, -1)
    entmax_of_last = bisected_entmax if alpha < 2 else steep_entmax
    return entmax_of_last(scores.swapaxes(axis, -1), allowed, alpha).swapaxes(axis, -1)


def softmax(scores: Array, mask: Array | None = None, *, axis: int = -1) -> Array:
    """Weights in proportion to the exponentials of the scores; they add up to 1 along an axis.

    Hidden scores weigh 0, whatever they hold; where all are hidden all weights are 0. Visible scores that are all -inf
    have overflowed: their weights are NaN.

    Args:
        scores: of any shape; 16-bit scores are computed in float32 and their weights rounded once.
        mask: True = may attend; broadcastable to the scores.
        axis: the axis along which the weights add up to 1.

    Raises:
        ValueError: a mask or an axis that does not fit.
        TypeError: scores that are not floats, or a mask that is not boolean.
    """
    array_specs = checked_specs("softmax", scores=scores, mask=mask)
    axis = functions_contract.numpy_scalar_to_python(axis)
    functions_contract.check_scores("softmax", array_specs["scores"], array_specs["mask"], axis)
    return to_dtype(ops.softmax(upcast(scores), mask, axis), dtype_name(scores))


def entmax(scores: Array, mask: Array | None = None, *, alpha: float = 1.5, axis: int = -1) -> Array:
    """Weights that may be exactly 0: softmax at alpha 1, sparsemax at 2, and the larger alpha, the fewer keys.

    The weights are ((alpha - 1) score - tau)^(1 / (alpha - 1)) where that is positive, with tau such that they add up
    to 1 (Peters, Niculae and Martins 2019, arXiv:1905.05702, equation 10). At 1.5 and 2 tau has a closed
    form on the support, otherwise it, or above 2 the smallest weight, is found by bisection. Masks, overflow and 16
    bits are those of `softmax`.

    Args:
        scores: of any shape.
        mask: True = may attend; broadcastable to the scores.
        alpha: a number from 1.
        axis: the axis along which the weights add up to 1.

    Raises:
        ValueError: a mask, an axis or an alpha that does not fit.
        TypeError: scores that are not floats, or a mask that is not boolean.
    """
    array_specs = checked_specs("entmax", scores=scores, mask=mask)
    axis, alpha = functions_contract.numpy_scalar_to_python(axis), functions_contract.numpy_scalar_to_python(alpha)
    functions_contract.check_scores("entmax", array_specs["scores"], array_specs["mask"], axis, alpha)
    return to_dtype(entmax_over(upcast(scores), mask, alpha, axis), dtype_name(scores))


@dispatches_on_array_type
def entmax_vjp(probs: Array, dprobs: Array, alpha: float) -> Array:
    """p_i^(alpha - 1) = 1 + (alpha - 1) (s_i - tau) on the support, so dp_i/ds_j = g_i (delta_ij - dtau/ds_j).

    Here g = p^(2 - alpha) is the slope of a weight. sum p_i = 1 stays, so dtau/ds_j = g_j / sum g_i, and
    ds_j = g_j (dp_j - sum g_i dp_i / sum g_i).
    """
    support = probs > 0
    slope = np.where(support, np.exp((2.0 - alpha) * np.log(np.where(support, probs, 1.0))), 0.0)
    slope_sum = np.sum(slope, axis=-1, keepdims=True)
    mean = np.sum(slope * dprobs, axis=-1, keepdims=True) / np.where(slope_sum == 0, 1.0, slope_sum)
    return slope * (dprobs - mean)


@dispatches_on_array_type
def steep_entmax_vjp(probs: Array, dprobs: Array, alpha: float) -> Array:
    """The rule of `entmax_vjp` for alpha above 2, where the smallest weight has the largest slope, of any size.

    So its slope stands only in the shares g_j / sum g_i, and since sum ds_j = 0 its score gets what the others lack.
    """
    power, log_max = alpha - 2.0, float(np.log(np.finfo(probs.dtype).max)) - 1.0
    support = probs > 0
    logs = np.log(np.where(support, probs, 1.0))
    at_smallest = np.arange(probs.shape[-1]) == np.argmin(np.where(support, probs, 2.0), axis=-1)[..., None]
    slope = np.exp(-power * np.maximum(logs, -log_max / power))
    gap = np.sum(np.where(at_smallest, logs, 0.0), axis=-1, keepdims=True) - logs
    share = np.where(support, np.exp(power * np.maximum(gap, -log_max / power)), 0.0)
    share_sum = np.sum(share, axis=-1, keepdims=True)
    mean = np.sum(share * dprobs, axis=-1, keepdims=True) / np.where(share_sum == 0, 1.0, share_sum)
    others = np.where(support & ~at_smallest, slope * (dprobs - mean), 0.0)
    return np.where(at_smallest & support, -np.sum(others, axis=-1, keepdims=True), others)


@defvjp(softmax)
def softmax_call_vjp(tape: Tape, dy: Array, *, axis: int = -1, **_: Any) -> dict[str, Array]:
    """The gradient of the scores."""
    return {"scores": softmax_vjp(tape["y"], dy, axis)}


def entmax_over_vjp(probs: Array, dprobs: Array, alpha: float, axis: int) -> Array:
    """The rule of `entmax_over`, from the weights alone."""
    rules: dict[float, Any] = {1: softmax_vjp, 1.5: entmax15_vjp, 2: sparsemax_vjp}
    if alpha in rules:
        return rules[alpha](probs, dprobs, axis)
    rule = entmax_vjp if alpha < 2 else steep_entmax_vjp
    return rule(probs.swapaxes(axis, -1), dprobs.swapaxes(axis, -1), alpha).swapaxes(axis, -1)


@defvjp(entmax)
def entmax_call_vjp(tape: Tape, dy: Array, *, alpha: float = 1.5, axis: int = -1, **_: Any) -> dict[str, Array]:
    """The gradient of the scores."""
    return {"scores": entmax_over_vjp(tape["y"], dy, alpha, axis)}
