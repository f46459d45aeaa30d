"""Sparse weights from scores: sparsemax, 1.5-entmax and the one-hot weights of hard attention."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from attn_jax._ops import Array, arange, argmax, broadcast_to, maximum, sqrt, where

GROUP = 16  # z of which the largest is looked for
NEAR = 2.0**-7  # steps that are shorter are not made with these


def support_of(z: Array, power: int, axis: int) -> Array:
    """Where z is above the threshold tau for which the sum of max(z - tau, 0)^power is 1; the largest z is 0.

    By Newton's steps from below, which never pass the threshold: the sum is convex (Michelot 1986). They begin where
    the largest of every few z alone would have it, since more of them only raise it.
    """

    def threshold(z: Array, tau: Array, enough: Any) -> Array:
        def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
            tau, _ = state
            above = maximum(z - tau, 0.0)
            size, slope = (above, above > 0) if power == 1 else (above * above, 2.0 * above)
            slope = jnp.sum(slope, axis=axis, keepdims=True, dtype=z.dtype)
            better = tau + (jnp.sum(size, axis=axis, keepdims=True) - 1.0) / where(slope == 0, 1.0, slope)
            return maximum(better, tau), jnp.any(better > tau + enough)

        return jax.lax.while_loop(lambda state: state[1], step, (tau, jnp.any(tau < 0)))[0]

    tau, n = -jnp.ones_like(jnp.max(z, axis=axis, keepdims=True)), z.shape[axis]
    if axis % z.ndim == z.ndim - 1 and not jax.export.is_symbolic_dim(n) and n > 4 * GROUP:
        groups = z[..., : n // GROUP * GROUP].reshape(*z.shape[:-1], GROUP, n // GROUP)
        tau = threshold(jnp.max(groups, axis=-2), tau, NEAR)
    return z > threshold(z, tau, jnp.finfo(z.dtype).eps)


def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: the largest of (sum of the k largest - 1)
    / k over all k. Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does
    an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -jnp.inf)
    n = scores.shape[axis]
    if n == 0:
        return scores
    top = jnp.max(jax.lax.stop_gradient(z), axis=axis, keepdims=True)
    overflowed = top == -jnp.inf
    z = z - where(overflowed, 0.0, top)
    fixed = jax.lax.stop_gradient(z)
    support = support_of(fixed, 1, axis)
    size = where(overflowed, 1.0, jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype))
    tau = (jnp.sum(where(support, fixed, 0.0), axis=axis, keepdims=True) - 1.0) / size
    tau = where(overflowed, 0.0, tau)
    # The gradient of a maximum is shared where a score lies at tau itself; that of the mean over the support is not.
    support = fixed > tau
    count = jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype)
    mean = jnp.sum(where(support, z, 0.0), axis=axis, keepdims=True) / where(count == 0, 1.0, count)
    weights = where(support, z - (tau + (mean - jax.lax.stop_gradient(mean))), 0.0)
    if allowed is not None:
        overflowed = overflowed & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return where(overflowed | ~(top < jnp.inf), jnp.nan, weights)


def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: the smaller root of
    sum (z - tau)^2 = 1 over the k largest z, for the largest k whose smallest z is at least tau. Where nothing is
    allowed the weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -jnp.inf)
    if scores.shape[axis] == 0:
        return scores
    top = jnp.max(jax.lax.stop_gradient(z), axis=axis, keepdims=True)
    overflowed = top == -jnp.inf
    z = (z - where(overflowed, 0.0, top)) / 2.0
    fixed = jax.lax.stop_gradient(z)
    # Of the support, k entries: their mean, and k times their variance.
    support = support_of(fixed, 2, axis)
    k = where(overflowed, 1.0, jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype))
    mean = jnp.sum(where(support, fixed, 0.0), axis=axis, keepdims=True) / k
    deviation = jnp.sum(where(support, (fixed - mean) * (fixed - mean), 0.0), axis=axis, keepdims=True)
    tau = mean - sqrt(maximum(1.0 - deviation, 0.0) / k)
    # tau has no gradient so far. The root of the same equation, counted from tau, is 0 and moves as tau does.
    support = fixed > tau
    root = where(support, z - tau, 0.0)
    size = where(overflowed, 1.0, jnp.sum(root, axis=axis, keepdims=True))
    count = jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype)
    excess = jnp.sum(root * root, axis=axis, keepdims=True)
    excess = excess - jax.lax.stop_gradient(excess)
    root = where(support, root - excess / (size + sqrt(size * size - count * excess)), 0.0)
    if allowed is not None:
        overflowed = overflowed & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return where(overflowed | ~(top < jnp.inf), jnp.nan, root * root)


def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z = jax.lax.stop_gradient(scores)
    z = z if allowed is None else where(allowed, z, -jnp.inf)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    top = jnp.max(z, axis=-1, keepdims=True)
    defined = top > -jnp.inf
    if allowed is not None:
        defined = defined | ~jnp.any(allowed, axis=-1, keepdims=True)
        chosen = chosen & allowed
    return where(defined & (top < jnp.inf), chosen.astype(z.dtype), jnp.nan)


def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard + (soft - jax.lax.stop_gradient(soft))
