"""Heads that are computed as one, and apart again."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attn_jax.ops.sharded import head_shards, with_whole_heads

Array = Any  # as in `ops`


def join_heads(x: Array, groups: int) -> Array:
    """The heads of each group as one: `b t h k` -> `b t groups (h/groups k)`.

    On a mesh with explicit axes heads stay on their devices, where a device has whole groups or all heads are one.
    """
    b, t, h, k = x.shape
    shape = (b, t, groups, h // groups * k)
    if AxisType.Explicit not in jax.typeof(x).sharding.mesh.axis_types:
        return x.reshape(shape)
    if groups > 1 and groups % head_shards(x):
        x = with_whole_heads(x)
    b_axes, t_axes, h_axes, _ = jax.typeof(x).sharding.spec
    return jnp.reshape(x, shape, out_sharding=P(b_axes, t_axes, *((None, h_axes) if groups == 1 else (h_axes, None))))


def reshape_as(x: Array, like: Array) -> Array:
    """The entries of x in the shape of `like`, and on a mesh with explicit axes where those of `like` lie."""
    sharding = jax.typeof(like).sharding
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jnp.reshape(x, like.shape, out_sharding=P(*sharding.spec) if explicit else None)
