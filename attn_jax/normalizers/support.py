"""Which scores a sparse weighing keeps, by Newton's steps."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from attn_jax.ops import Array, maximum, where

SCORES_PER_MAXIMUM = 16  # groups of this many z are reduced to their largest
COARSE_STEP = 2.0**-7  # Newton's steps on the largest of each group stop below this length


def support_of(z: Array, power: int) -> Array:
    """Where z, whose rows have 0 as their largest, is above the tau for which the sum of max(z - tau, 0)^power is 1.

    By Newton's steps from below, which never pass tau: the sum is convex (Michelot 1986). They begin at the tau of
    the largest of every few z, which is never above that of all, since more z only raise it.
    """

    def threshold(z: Array, tau: Array, tolerance: Any) -> Array:
        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            tau, _ = state
            above = maximum(z - tau, 0.0)
            # Not `above > 0`: XLA takes three times as long for a sum of booleans beside another sum.
            mass, slope = (above, jnp.sign(above)) if power == 1 else (above * above, 2.0 * above)
            slope = jnp.sum(slope, axis=-1, keepdims=True)
            next_tau = tau + (jnp.sum(mass, axis=-1, keepdims=True) - 1.0) / where(slope == 0, 1.0, slope)
            return maximum(next_tau, tau), jnp.any(next_tau > tau + tolerance)

        return jax.lax.while_loop(lambda state: state[1], body, (tau, jnp.any(tau < 0)))[0]

    tau, n = -jnp.ones_like(jnp.max(z, axis=-1, keepdims=True)), z.shape[-1]
    if not jax.export.is_symbolic_dim(n) and n > 4 * SCORES_PER_MAXIMUM:
        groups = z[..., : n // SCORES_PER_MAXIMUM * SCORES_PER_MAXIMUM].reshape(
            *z.shape[:-1], SCORES_PER_MAXIMUM, n // SCORES_PER_MAXIMUM
        )
        tau = threshold(jnp.max(groups, axis=-2), tau, COARSE_STEP)
    return z > threshold(z, tau, jnp.finfo(z.dtype).eps)
