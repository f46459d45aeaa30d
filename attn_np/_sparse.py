"""Sparse weights from scores: sparsemax, 1.5-entmax and the one-hot weights of hard attention."""

import numpy as np

from attn_np._ops import Array, arange, argmax, broadcast_to, cumsum, maximum, primitive, sqrt, zeros


@primitive
def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: the largest of (sum of the k largest - 1)
    / k over all k. Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does
    an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    n = scores.shape[axis]
    if n == 0:
        return scores
    top = np.max(z, axis=axis, keepdims=True)
    overflowed = top == -np.inf
    z = z - np.where(overflowed, 0.0, top)
    ranks = cumsum(zeros((n,), z) + 1.0, 0).reshape(
        (n,) + (1,) * ((scores.ndim - 1 - axis) if axis >= 0 else (-1 - axis))
    )
    tau = np.max((cumsum(-np.sort(-z, axis=axis), axis) - 1.0) / ranks, axis=axis, keepdims=True)
    tau = np.where(overflowed, 0.0, tau)
    weights = np.where(z > tau, z - tau, 0.0)
    if allowed is not None:
        overflowed = overflowed & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return np.where(overflowed | ~(top < np.inf), np.nan, weights)


@primitive
def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: the smaller root of
    sum (z - tau)^2 = 1 over the k largest z, for the largest k whose smallest z is at least tau. Where nothing is
    allowed the weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    if scores.shape[axis] == 0:
        return scores
    top = np.max(z, axis=axis, keepdims=True)
    overflowed = top == -np.inf
    z = (z - np.where(overflowed, 0.0, top)) / 2.0
    # A single largest z gives tau = -1, so entries below -1 weigh 0.
    x = -np.sort(-maximum(z, -1.0), axis=axis)
    k = cumsum(0.0 * x + 1.0, axis)
    mean = cumsum(x, axis) / k
    # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford 1962).
    deviation = cumsum((x - mean) * (x - mean) * (k / maximum(k - 1.0, 1.0)), axis)
    tau = mean - sqrt(maximum(1.0 - deviation, 0.0) / k)
    tau = np.max(np.where(tau <= x, tau, -1.0), axis=axis, keepdims=True)
    root = maximum(z - tau, 0.0)
    if allowed is not None:
        overflowed = overflowed & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return np.where(overflowed | ~(top < np.inf), np.nan, root * root)


@primitive
def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    top = np.max(z, axis=-1, keepdims=True)
    defined = top > -np.inf
    if allowed is not None:
        defined = defined | ~np.any(allowed, axis=-1, keepdims=True)
        chosen = chosen & allowed
    return np.where(defined & (top < np.inf), chosen.astype(z.dtype), np.nan)


@primitive
def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard
