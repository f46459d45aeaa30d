"""Attention and recurrences over a sequence that lies on several processes of `torch.distributed`.

    q, k, v = (to_devices(x, layout="zigzag") for x in (q, k, v))  # this process's part: b (n t) h k -> b t h k
    y = ring_attend(q, k, v, causal=True, layout="zigzag")  # for its own queries

Every process has t of the n t positions, as plain tensors. `group` is a process group, or a `DeviceMesh` with one axis;
all processes by default. `attn_np.parallel` shows the same functions with the devices as an axis.

- `ring_attend`: keys and values travel around a ring; each process holds those of one process at a time.
- `gather_attend`: each process gets the keys and values of all.
- `ulysses_attend`: the processes trade positions for heads, and each attends over the whole sequence with its heads.
- `recur`: each process's positions turn a state S into A S + B, and these are combined in order.
- `apply`: a causal layer with its sequence on all processes.
- `Heads`: each process has some of the heads of a layer, by `parallelize_module`.

The loss is the sum of what the processes compute. So the gradient of a tensor that all of them have, such as sinks, is
in each process that of its own part of the loss: sum it over the group, as is done with those of parameters.
"""

from attn_torch.parallel.attention import gather_attend as gather_attend
from attn_torch.parallel.attention import ring_attend as ring_attend
from attn_torch.parallel.attention import ulysses_attend as ulysses_attend
from attn_torch.parallel.heads import Heads as Heads
from attn_torch.parallel.layers import apply as apply
from attn_torch.parallel.layouts import from_devices as from_devices
from attn_torch.parallel.layouts import positions as positions
from attn_torch.parallel.layouts import to_devices as to_devices
from attn_torch.parallel.recurrence import recur as recur

__all__ = [
    "Heads",
    "apply",
    "from_devices",
    "gather_attend",
    "positions",
    "recur",
    "ring_attend",
    "to_devices",
    "ulysses_attend",
]
