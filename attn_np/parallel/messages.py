"""What devices send each other, simulated: the devices are the first axis of every array."""

import numpy as np

from attn_np.ops import Array


def to_next(x: Array) -> Array:
    """What every device gets from the one before it, when all send at once."""
    return np.roll(x, 1, 0)


def gather(x: Array) -> Array:
    """The positions of all devices on every device, one device's after another's: `n b s ...` -> `n b (m s) ...`."""
    n, b, s, *rest = x.shape
    return np.broadcast_to(x.swapaxes(0, 1).reshape(b, n * s, *rest), (n, b, n * s, *rest))


def gather_vjp(dx: Array) -> Array:
    """Every device got a copy of every shard: the gradients of the copies go home, where they are summed."""
    n, b, length, *rest = dx.shape
    return np.sum(dx, 0).reshape(b, n, length // n, *rest).swapaxes(0, 1)


def heads_for_positions(x: Array) -> Array:
    """All positions of some heads, from some positions of all heads: `n b t (m h) k` -> `m b (n t) h k`, m = n."""
    n, b, t, heads, width = x.shape
    x = x.reshape(n, b, t, n, heads // n, width).transpose(3, 1, 0, 2, 4, 5)
    return x.reshape(n, b, n * t, heads // n, width)


def positions_for_heads(x: Array) -> Array:
    """Some positions of all heads, from all positions of some heads: the inverse, and so the rule for gradients."""
    n, b, length, heads, width = x.shape
    x = x.reshape(n, b, n, length // n, heads, width).transpose(2, 1, 3, 0, 4, 5)
    return x.reshape(n, b, length // n, n * heads, width)


def as_rows(x: Array) -> Array:
    """The devices as rows of one batch: `n b ...` -> `(n b) ...`."""
    return x.reshape(-1, *x.shape[2:])


def by_device(x: Array, n: int) -> Array:
    """The rows as those of n devices: `(n b) ...` -> `n b ...`."""
    return x.reshape(n, -1, *x.shape[1:])
