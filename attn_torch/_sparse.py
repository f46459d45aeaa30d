"""Sparse weights from scores: sparsemax, 1.5-entmax and the one-hot weights of hard attention."""

import torch

from attn_torch._ops import (
    Array,
    arange,
    argmax,
    broadcast_to,
    cumsum,
    maximum,
    shapes_may_vary,
    sqrt,
    where,
    zeros,
)

NEWTON_STEPS = 4  # towards a threshold, before what is left is sorted


def sorted_support(z: Array, power: int, axis: int) -> Array:
    """The entries that may lie above the threshold tau for which the sum of max(z - tau, 0)^power is 1, largest first;
    the largest of all is 0.

    Newton's steps from below never pass the threshold, since the sum is convex (Michelot 1986): a few of them leave so
    few entries that sorting costs little. Where shapes may not depend on numbers, or a process does not see all of
    them, all are sorted.
    """
    if not shapes_may_vary(z) or hasattr(z, "device_mesh"):
        return torch.sort(z, dim=axis, descending=True).values
    tau = z.new_full((), -1.0)
    for _ in range(NEWTON_STEPS):
        above = (z - tau).clamp_(min=0.0)
        size, slope = (above, torch.sign(above)) if power == 1 else (above * above, 2.0 * above)
        slope = torch.sum(slope, dim=axis, keepdim=True)
        better = tau + (torch.sum(size, dim=axis, keepdim=True) - 1.0) / where(slope == 0, 1.0, slope)
        tau = where(better > tau, better, tau)
    count = int(torch.sum(z > tau, dim=axis).max()) if z.numel() else 1
    return torch.topk(z, max(1, count), dim=axis).values


def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: the largest of (sum of the k largest - 1)
    / k over all k. Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does
    an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -torch.inf)
    if scores.shape[axis] == 0:
        return scores
    top = torch.amax(z.detach(), dim=axis, keepdim=True)
    overflowed = top == -torch.inf
    z = z - where(overflowed, 0.0, top)
    fixed = z.detach()
    x = sorted_support(fixed, 1, axis)
    n = x.shape[axis]
    ranks = cumsum(zeros((n,), z) + 1.0, 0).reshape(
        (n,) + (1,) * ((scores.ndim - 1 - axis) if axis >= 0 else (-1 - axis))
    )
    tau = torch.amax((cumsum(x, axis) - 1.0) / ranks, dim=axis, keepdim=True)
    tau = where(overflowed, 0.0, tau)
    # The gradient of a maximum is shared where a score lies at tau itself; that of the mean over the support is not.
    support = fixed > tau
    count = torch.sum(support, dim=axis, keepdim=True, dtype=z.dtype)
    mean = torch.sum(where(support, z, 0.0), dim=axis, keepdim=True) / where(count == 0, 1.0, count)
    weights = where(support, z - (tau + (mean - mean.detach())), 0.0)
    if allowed is not None:
        overflowed = overflowed & torch.any(broadcast_to(allowed, scores.shape), dim=axis, keepdim=True)
    return where(overflowed | ~(top < torch.inf), torch.nan, weights)


def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: the smaller root of
    sum (z - tau)^2 = 1 over the k largest z, for the largest k whose smallest z is at least tau. Where nothing is
    allowed the weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -torch.inf)
    if scores.shape[axis] == 0:
        return scores
    top = torch.amax(z.detach(), dim=axis, keepdim=True)
    overflowed = top == -torch.inf
    z = (z - where(overflowed, 0.0, top)) / 2.0
    fixed = z.detach()
    # A single largest z gives tau = -1, so entries below -1 weigh 0.
    x = sorted_support(maximum(fixed, -1.0), 2, axis)
    k = cumsum(0.0 * x + 1.0, axis)
    mean = cumsum(x, axis) / k
    # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford 1962).
    deviation = cumsum((x - mean) * (x - mean) * (k / maximum(k - 1.0, 1.0)), axis)
    tau = mean - sqrt(maximum(1.0 - deviation, 0.0) / k)
    tau = torch.amax(where(tau <= x, tau, -1.0), dim=axis, keepdim=True)
    # tau has no gradient so far. The root of the same equation, counted from tau, is 0 and moves as tau does.
    support = fixed > tau
    root = where(support, z - tau, 0.0)
    size = where(overflowed, 1.0, torch.sum(root, dim=axis, keepdim=True))
    count = torch.sum(support, dim=axis, keepdim=True, dtype=z.dtype)
    excess = torch.sum(root * root, dim=axis, keepdim=True)
    excess = excess - excess.detach()
    root = where(support, root - excess / (size + sqrt(size * size - count * excess)), 0.0)
    if allowed is not None:
        overflowed = overflowed & torch.any(broadcast_to(allowed, scores.shape), dim=axis, keepdim=True)
    return where(overflowed | ~(top < torch.inf), torch.nan, root * root)


def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z = scores.detach() if allowed is None else where(allowed, scores.detach(), -torch.inf)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    top = torch.amax(z, dim=-1, keepdim=True)
    defined = top > -torch.inf
    if allowed is not None:
        defined = defined | ~torch.any(allowed, dim=-1, keepdim=True)
        chosen = chosen & allowed
    return where(defined & (top < torch.inf), chosen.to(z.dtype), torch.nan)


def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard + (soft - soft.detach())
