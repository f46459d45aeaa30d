"""What JAX leaves to the caller on a mesh with explicit axes: how results are sharded that it cannot tell."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, get_abstract_mesh
from jax.sharding import PartitionSpec as P


def sharded_as_after(turn: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
    """The first carry of a scan, sharded as the first turn returns it."""
    if AxisType.Explicit not in get_abstract_mesh().axis_types:
        return carry
    after, _ = jax.eval_shape(turn, carry, jax.tree.map(lambda x: x[0], xs))
    return jax.tree.map(lambda x, y: jax.sharding.reshard(x, y.sharding.spec), carry, after)


def varying_as(x: jax.Array, zeros: jax.Array) -> jax.Array:
    """x; in `shard_map` it differs from device to device where the zeros, of its shape, are said to."""
    return x + zeros if AxisType.Manual in get_abstract_mesh().axis_types else x


def with_rows_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """`b ...`, of which each batch row lies where that of `like`, `b ...`, does."""
    if AxisType.Explicit not in jax.typeof(like).sharding.mesh.axis_types:
        return x
    return jax.sharding.reshard(x, P(jax.typeof(like).sharding.spec[0], *jax.typeof(x).sharding.spec[1:]))


def with_rows_of_sequences(x: jax.Array, sequences: int) -> jax.Array:
    """`(b h) ...`, of which the rows of a sequence lie on one device; JAX splits them on a mesh with explicit axes."""
    sharding = jax.typeof(x).sharding
    axes, mesh = sharding.spec[0], sharding.mesh
    if AxisType.Explicit not in mesh.axis_types or not isinstance(axes, tuple):
        return x
    while sequences % prod(mesh.shape[name] for name in axes):
        axes = axes[:-1]
    return jax.sharding.reshard(x, P(axes, *sharding.spec[1:]))


def with_heads_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """Keys or values `b s h ...`, of which each head lies where that of `like`, `b t h ...`, does."""
    if AxisType.Explicit not in jax.typeof(like).sharding.mesh.axis_types:
        return x
    b, s, _, *rest = jax.typeof(x).sharding.spec
    return jax.sharding.reshard(x, P(b, s, jax.typeof(like).sharding.spec[2], *rest))


def with_entries_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """`b t ...`, of which each position's entries lie where those of `like`, `b s ...`, do."""
    if AxisType.Explicit not in jax.typeof(like).sharding.mesh.axis_types:
        return x
    return jax.sharding.reshard(x, P(*jax.typeof(x).sharding.spec[:2], *jax.typeof(like).sharding.spec[2:]))


def head_shards(x: jax.Array) -> int:
    """Into how many parts a mesh with explicit axes cuts the heads of `b t h k`."""
    sharding = jax.typeof(x).sharding
    axes = sharding.spec[2]
    return prod(sharding.mesh.shape[name] for name in ((axes,) if isinstance(axes, str) else axes or ()))


def with_whole_heads(x: jax.Array) -> jax.Array:
    """`b t h ...` with all heads on every device."""
    b, t, _, *rest = jax.typeof(x).sharding.spec
    return jax.sharding.reshard(x, P(b, t, None, *rest))


def reshape_heads(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`b t h k` -> `b t groups (h/groups k)`; heads that lie on several devices stay there where groups allow it."""
    if AxisType.Explicit not in jax.typeof(x).sharding.mesh.axis_types:
        return x.reshape(shape)
    groups = shape[2]
    if groups > 1 and groups % head_shards(x):
        x = with_whole_heads(x)
    b_axes, t_axes, h_axes, _ = jax.typeof(x).sharding.spec
    axes = (None, h_axes) if groups == 1 else (h_axes, None)
    return jnp.reshape(x, shape, out_sharding=P(b_axes, t_axes, *axes))


def in_heads_as(x: jax.Array, like: jax.Array) -> jax.Array:
    """The reverse of `reshape_heads`: the shape of `like`, `b t h k`, and where its entries lie."""
    sharding = jax.typeof(like).sharding
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jnp.reshape(x, like.shape, out_sharding=P(*sharding.spec) if explicit else None)
