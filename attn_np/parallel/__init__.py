"""Attention and recurrences over a sequence that lies on several devices, simulated: the devices are an axis.

    q, k, v = (to_devices(x, devices=4, layout="zigzag") for x in (q, k, v))  # b t h k -> n b t h k
    y = from_devices(ring_attend(q, k, v, causal=True, layout="zigzag"), layout="zigzag")

Every array has the devices as its first axis, and what a device sends to the next one is a roll along that axis. All
devices compute at once, as rows of one batch. `attn_jax.parallel` and `attn_torch.parallel` have the same functions for
real devices, each with its own arrays.

- `ring_attend`: keys and values travel around a ring; each device holds those of one device at a time.
- `gather_attend`: each device gets the keys and values of all.
- `ulysses_attend`: the devices trade positions for heads, and each attends over the whole sequence with its heads.
- `recur`: each device's positions turn a state S into A S + B, and these are combined in order.
- `apply`: a causal layer with its sequence on all devices, forward.
"""

from attn_np.parallel.attention import gather_attend as gather_attend
from attn_np.parallel.attention import ring_attend as ring_attend
from attn_np.parallel.attention import ulysses_attend as ulysses_attend
from attn_np.parallel.layers import apply as apply
from attn_np.parallel.layouts import from_devices as from_devices
from attn_np.parallel.layouts import positions as positions
from attn_np.parallel.layouts import to_devices as to_devices
from attn_np.parallel.recurrence import recur as recur

__all__ = [
    "apply",
    "from_devices",
    "gather_attend",
    "positions",
    "recur",
    "ring_attend",
    "to_devices",
    "ulysses_attend",
]
