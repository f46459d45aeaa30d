"""Which scores a sparse weighing keeps, by sorting."""

import numpy as np

from attn_np.ops import Array


def support_of(z: Array, power: int) -> Array:
    """Where z, the largest of a row 0, is above the tau for which the sum of max(z - tau, 0)^power is 1.

    Let tau_k be tau if the k largest z were the support. tau is the largest tau_k, for power 2 among the k whose k-th
    largest z is at least tau_k.
    """
    x = np.sort(z, axis=-1)[..., ::-1]
    k = np.arange(x.shape[-1]) + 1.0
    if power == 1:
        tau = (np.cumsum(x, axis=-1, dtype=np.float64) - 1.0) / k
    else:
        x = np.maximum(x, -1.0).astype(np.float64)  # the largest alone gives tau = -1
        mean = np.cumsum(x, axis=-1) / k
        # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford).
        squared_deviations = np.cumsum((x - mean) ** 2 * (k / np.maximum(k - 1.0, 1.0)), axis=-1)
        tau = mean - np.sqrt(np.maximum(1.0 - squared_deviations, 0.0) / k)
        tau = np.where(tau <= x, tau, -1.0)
    return z > np.max(tau, axis=-1, keepdims=True)
