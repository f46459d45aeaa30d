"""What JAX leaves to the caller on a mesh with explicit axes: how results are sharded that it cannot tell."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, get_abstract_mesh
from jax.sharding import PartitionSpec as P


def sharded_as_after(turn: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
    """The first carry of a scan, sharded as the first turn returns it."""
    if AxisType.Explicit not in get_abstract_mesh().axis_types:
        return carry
    after, _ = jax.eval_shape(turn, carry, jax.tree.map(lambda x: x[0], xs))
    return jax.tree.map(lambda x, y: jax.sharding.reshard(x, y.sharding.spec), carry, after)


def with_heads_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """Keys or values `b s h ...`, of which each head lies where that of `like`, `b t h ...`, does."""
    if AxisType.Explicit not in jax.typeof(like).sharding.mesh.axis_types:
        return x
    b, s, _, *rest = jax.typeof(x).sharding.spec
    return jax.sharding.reshard(x, P(b, s, jax.typeof(like).sharding.spec[2], *rest))
