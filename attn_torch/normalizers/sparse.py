"""Sparse weights from scores: sparsemax, 1.5-entmax and the one-hot weights of hard attention."""

from attn_torch.normalizers.support import support_of
from attn_torch.ops import (
    Array,
    amax_detached,
    any_over,
    arange,
    argmax,
    broadcast_to,
    detach,
    dtype_name,
    maximum,
    sqrt,
    to_dtype,
    where,
)

MEAN_RELATIVE_ERROR = {
    "float64": 2.0**-49,
    "float32": 2.0**-20,
}  # bounds the relative rounding error of a mean of numbers of one sign


def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: (sum - 1) / k over the k scores above tau.
    Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one
    that is NaN or inf.
    """
    if scores.shape[axis] == 0:
        return scores
    z, top, undefined = masked_rows(scores, allowed, axis)
    z = z - top
    fixed = detach(z)
    support = support_of(fixed, 1)
    tau = (row_sum(where(support, fixed, 0.0)) - 1.0) / support_size(support, z)
    # One more Newton step, from below the true tau: weights may be smaller than its rounding.
    tau = tau * (1.0 + MEAN_RELATIVE_ERROR[dtype_name(z)])
    above = maximum(fixed - tau, 0.0)
    excess = (row_sum(above) - 1.0) / support_size(above > 0.0, z)
    support = above > maximum(excess, 0.0)
    # tau has no gradient so far. It moves as the mean of the support does.
    mean = row_sum(where(support, z, 0.0)) / support_size(support, z)
    weights = where(support, (z - tau) - (excess + (mean - detach(mean))), 0.0)
    return where(undefined, float("nan"), weights).swapaxes(axis, -1)


def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: the smaller solution of
    sum (z - tau)^2 = 1 over the k largest z, which are those above tau. Where nothing is allowed the weights are 0;
    allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[axis] == 0:
        return scores
    z, top, undefined = masked_rows(scores, allowed, axis)
    z = (z - top) / 2.0
    fixed = detach(z)
    support = support_of(fixed, 2)
    k = support_size(support, z)
    mean = row_sum(where(support, fixed, 0.0)) / k
    deviation = where(support, fixed - mean, 0.0)
    tau = mean - sqrt(maximum(1.0 - row_sum(deviation * deviation), 0.0) / k)
    # tau has no gradient so far, and is rounded. The solution of the same equation counted from tau has neither fault.
    support = fixed > tau
    root = where(support, z - tau, 0.0)  # of the weight
    root_sum, excess = row_sum(root), row_sum(root * root) - 1.0
    tau_shift = excess / (root_sum + sqrt(root_sum * root_sum - support_size(support, z) * excess))
    root = where(support & (root > tau_shift), root - tau_shift, 0.0)
    return where(undefined, float("nan"), root * root).swapaxes(axis, -1)


def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z, _, undefined = masked_rows(detach(scores), allowed, -1)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    chosen = chosen if allowed is None else chosen & allowed
    return where(undefined, float("nan"), to_dtype(chosen, dtype_name(z)))


def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard + (soft - detach(soft))


def masked_rows(scores: Array, allowed: Array | None, axis: int) -> tuple[Array, Array, Array]:
    """The scores with the axis as their last, -inf where hidden; the largest of every row, as a column, 0 where it is
    -inf; and which rows have no weights: an allowed score is NaN or inf, or all of them are -inf.
    """
    z = scores.swapaxes(axis, -1)
    if allowed is not None:
        allowed = broadcast_to(allowed, scores.shape).swapaxes(axis, -1)
        z = where(allowed, z, float("-inf"))
    top = amax_detached(z, -1)[..., None]
    overflowed = nothing = top == float("-inf")
    if allowed is not None:
        overflowed = nothing & any_over(allowed, (allowed.ndim - 1,))[..., None]
    return z, where(nothing, 0.0, top), overflowed | (top < float("inf")) ^ True


def row_sum(x: Array) -> Array:
    """The sum of every row, as a column."""
    return x.sum(-1)[..., None]


def support_size(support: Array, like: Array) -> Array:
    """How many of every row are in the support, 1 where none is, as a column of the dtype of `like`."""
    return maximum(row_sum(to_dtype(support, dtype_name(like))), 1.0)
