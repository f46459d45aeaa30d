"""What devices send each other, inside `jax.shard_map`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_jax.ops import concatenate
from attn_jax.ops.sharded import head_shards, with_whole_heads
from attn_np.contract._base import field_error

AxisName = str | tuple[str, ...]


def axis_size(who: str, axis_name: Any) -> int:
    """How many devices the sequence lies on.

    Raises:
        ValueError: no such axis, or a call outside of `shard_map`.
    """
    try:
        return lax.axis_size(axis_name)
    except (NameError, TypeError, ValueError, KeyError):
        pass
    expected = "axis_name to be an axis of the mesh, inside jax.shard_map"
    raise field_error(who, expected, repr(axis_name), "call jax.shard_map(partial(..., axis_name=...), mesh=...)")


def check_differs(who: str, axis_name: Any, **arrays: Any) -> None:
    """Refuse an array that all devices have whole, where each should have its part of the sequence.

    `shard_map` knows it unless it is called with `check_vma=False`.

    Raises:
        ValueError: naming it.
    """
    axes = set(axis_name if isinstance(axis_name, tuple) else (axis_name,))
    known = axes & differing_axes(lax.axis_index(axis_name))
    for name, x in arrays.items():
        missing = sorted(axis for axis in known - differing_axes(x) if lax.axis_size(axis) > 1)
        if missing:
            expected = f"{name} cut along its positions over {', '.join(map(repr, missing))}"
            fix = f"write in_specs=P(None, {axis_name!r}) of shard_map"
            raise field_error(who, expected, "the same on every device", fix)


def differing_axes(x: Any) -> frozenset[Any]:
    """The axes along which `shard_map` takes an array to differ; none where it does not ask."""
    kind: Any = jax.typeof(x)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else getattr(kind, "vma", frozenset())


def to_next(tree: Any, axis_name: AxisName) -> Any:
    """What this device gets from the one before it, when all send at once."""
    n = lax.axis_size(axis_name)
    return jax.tree.map(lambda x: lax.ppermute(x, axis_name, [(i, (i + 1) % n) for i in range(n)]), tree)


def from_earlier(tree: Any, axis_name: AxisName, hops: int) -> Any:
    """What the device so many places before this one sends; 0 where there is none."""
    n = lax.axis_size(axis_name)
    return jax.tree.map(lambda x: lax.ppermute(x, axis_name, [(i, i + hops) for i in range(n - hops)]), tree)


def last_before(x: Array, size: int, axis_name: AxisName) -> Array:
    """The last positions before this device's, `b t ...` -> `b size ...`; 0 before the first of all."""
    n, t = lax.axis_size(axis_name), x.shape[1]
    hops = range(min(n - 1, -(-size // t)), 0, -1)
    parts = [from_earlier(x[:, max(0, t - size) :], axis_name, i) for i in hops]
    return concatenate([jnp.zeros_like(x, shape=(x.shape[0], size, *x.shape[2:])), *parts], 1)[:, -size:]


def gather(x: Array, axis_name: AxisName) -> Array:
    """The positions of all devices, one device's after another's: `b s ...` -> `b (n s) ...`."""
    if any(jax.typeof(x).sharding.spec[2:]):  # explicit axes of the mesh have the heads
        # JAX 0.10 cannot compile this gradient of `all_gather`; an exchange of copies moves as much, in both passes.
        copies = jnp.concatenate([x] * lax.axis_size(axis_name), 1)
        return lax.all_to_all(copies, axis_name, split_axis=1, concat_axis=1, tiled=True)
    return lax.all_gather(x, axis_name, axis=1, tiled=True)


def heads_for(q: Array, x: Array) -> Array:
    """Keys or values, with all heads on every device where an explicit axis of the mesh has theirs and not q's."""
    return x if head_shards(x) in (1, head_shards(q)) else with_whole_heads(x)


def copied_heads(x: Array, copies: int) -> Array:
    """Each head as often as needed, one copy after the other: `b s g k` -> `b s (g copies) k`."""
    b, s, g, width = x.shape
    return jnp.broadcast_to(x[:, :, :, None], (b, s, g, copies, width)).reshape(b, s, g * copies, width)


def heads_for_positions(x: Array, axis_name: AxisName) -> Array:
    """All positions of some heads, from some positions of all heads: `b t (n h) k` -> `b (n t) h k`."""
    return lax.all_to_all(x, axis_name, split_axis=2, concat_axis=1, tiled=True)


def positions_for_heads(x: Array, axis_name: AxisName) -> Array:
    """The inverse: `b (n t) h k` -> `b t (n h) k`."""
    return lax.all_to_all(x, axis_name, split_axis=1, concat_axis=2, tiled=True)


def varying_alike(axis_name: AxisName, *arrays: Any) -> Any:
    """The same arrays, each of which `shard_map` takes to differ along all axes of the mesh that one of them differs
    along, and along that of the sequence. A rule for gradients, and the carry of a loop, need arrays that are alike so.
    """
    # An array of zeros like another one differs along the same axes.
    zero = sum(
        (jnp.zeros_like(x, shape=(), dtype=jnp.int32) for x in arrays), jnp.zeros_like(lax.axis_index(axis_name))
    )
    return tuple(x | (zero != 0) if x.dtype == bool else x + zero.astype(x.dtype) for x in arrays)
