"""Attention and recurrences over a sequence that lies on several devices, inside `jax.shard_map`.

    call = partial(ring_attend, axis_name="seq", causal=True, layout="zigzag")
    ring = jax.shard_map(call, mesh=mesh, in_specs=(P(None, "seq"),) * 3, out_specs=P(None, "seq"))
    q, k, v = (to_devices(x, devices=mesh.shape["seq"], layout="zigzag") for x in (q, k, v))  # in the layout's order
    y = from_devices(ring(q, k, v), devices=mesh.shape["seq"], layout="zigzag")

Every device has t of the n t positions. `attn_np.parallel` shows the same functions with the devices as an axis.

- `ring_attend`: keys and values travel around a ring; each device holds those of one device at a time.
- `gather_attend`: each device gets the keys and values of all.
- `ulysses_attend`: the devices trade positions for heads, and each attends over the whole sequence with its heads.
- `recur`: each device's positions turn a state S into A S + B, and these are combined in order.

`apply` runs a causal layer so. `name_axes` names the axes of parameters, by which nnx shards heads and widths.
"""

from attn_jax.parallel.attention import gather_attend as gather_attend
from attn_jax.parallel.attention import ring_attend as ring_attend
from attn_jax.parallel.attention import ulysses_attend as ulysses_attend
from attn_jax.parallel.layers import apply as apply
from attn_jax.parallel.layouts import from_devices as from_devices
from attn_jax.parallel.layouts import positions as positions
from attn_jax.parallel.layouts import to_devices as to_devices
from attn_jax.parallel.names import name_axes as name_axes
from attn_jax.parallel.recurrence import recur as recur

__all__ = [
    "apply",
    "from_devices",
    "gather_attend",
    "name_axes",
    "positions",
    "recur",
    "ring_attend",
    "to_devices",
    "ulysses_attend",
]
