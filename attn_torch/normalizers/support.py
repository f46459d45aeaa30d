"""Which scores a sparse weighing keeps, by a few of Newton's steps and sorting."""

import torch

from attn_torch.ops import Array, allows_data_dependent_shapes, arange, maximum, sqrt, where

NEWTON_STEPS = 4  # before what is left is sorted


def support_of(z: Array, power: int) -> Array:
    """Where z, whose rows have 0 as their largest, is above the tau for which the sum of max(z - tau, 0)^power is 1.

    Let tau_k be tau if the k largest z were the support. tau is the largest tau_k, for power 2 among the k whose k-th
    largest z is at least tau_k.
    """
    x = largest_first(z, power)
    k = arange(x.shape[-1], z) + 1.0
    if power == 1:
        tau = (torch.cumsum(x, -1) - 1.0) / k
    else:
        x = maximum(x, -1.0)  # the largest alone gives tau = -1
        mean = torch.cumsum(x, -1) / k
        # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford).
        squared_deviations = torch.cumsum((x - mean) * (x - mean) * (k / maximum(k - 1.0, 1.0)), -1)
        tau = mean - sqrt(maximum(1.0 - squared_deviations, 0.0) / k)
        tau = where(tau <= x, tau, -1.0)
    return z > torch.amax(tau, dim=-1, keepdim=True)


def largest_first(z: Array, power: int) -> Array:
    """The z of every row that may lie above its tau, sorted.

    Newton's steps from below never pass tau, since the sum is convex (Michelot 1986): a few of them leave so few z that
    sorting costs little. All are sorted where shapes may not depend on numbers, or a process does not see all of them.
    """
    if not allows_data_dependent_shapes(z) or hasattr(z, "device_mesh"):
        return torch.sort(z, dim=-1, descending=True).values
    tau = z.new_full((), -1.0)
    for _ in range(NEWTON_STEPS):
        above = (z - tau).clamp_(min=0.0)
        mass, slope = (above, torch.sign(above)) if power == 1 else (above * above, 2.0 * above)
        slope = torch.sum(slope, dim=-1, keepdim=True)
        next_tau = tau + (torch.sum(mass, dim=-1, keepdim=True) - 1.0) / where(slope == 0, 1.0, slope)
        tau = where(next_tau > tau, next_tau, tau)
    count = int(torch.sum(z > tau, dim=-1).max()) if z.numel() else 1
    return torch.topk(z, max(1, count), dim=-1).values
