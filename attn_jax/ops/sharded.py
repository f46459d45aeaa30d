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


def varying_as(tree: Any, like: jax.Array) -> Any:
    """Arrays that, in `shard_map`, differ from device to device as `like` is said to, so that scans may carry them."""
    if AxisType.Manual not in get_abstract_mesh().axis_types:
        return tree
    return jax.tree.map(lambda x: x + jnp.zeros_like(like, x.dtype, shape=jnp.shape(x)), tree)


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
