"""What kernels do to arrays: read and add to parts of them by blocks, at offsets known only at run time."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attn_jax.ops import Array


def sharded_as_queries(x: Array, q: Array) -> Array:
    """A bias `b h t s`, or of fewer axes, with its batch and heads sharded as those of the queries `b t h k`, on a mesh
    with explicit axes: its gradient is added up from parts that are sharded so.
    """
    sharding = jax.typeof(q).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return x
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    batch, heads = (sharding.spec[axis] if n > 1 else None for axis, n in zip((0, 2), x.shape[:2], strict=True))
    return jax.sharding.reshard(x, P(batch, heads, None, None))


def slice_of(x: Array, axis: int, first: Any, size: int) -> Array:
    """`size` entries of an axis from `first` on, a number or an array of one per sequence; an axis of 1 serves all."""
    if x.shape[axis] in (1, size) or jnp.ndim(first) == 0:
        return x if x.shape[axis] in (1, size) else jax.lax.dynamic_slice_in_dim(x, first, size, axis)
    of_one, alone = partial(slice_of, axis=axis - 1, size=size), x.shape[0] == 1
    return jax.vmap(lambda first, x: of_one(x, first=first), (0, None if alone else 0))(first, x[0] if alone else x)


def largest(scores: Array, visible: Array | None) -> Array:
    """The largest score over the last axis; the lowest finite number where what is visible is all -inf, so that only a
    query that sees no key has -inf.
    """
    scores = jnp.maximum(jax.lax.stop_gradient(scores), jnp.finfo(scores.dtype).min)
    return jnp.max(scores if visible is None else jnp.where(visible, scores, -jnp.inf), -1, initial=-jnp.inf)


def pad_to(x: Array, axis: int, size: int) -> Array:
    """Zeros, or False, at the end of an axis."""
    if x.shape[axis] == size:
        return x
    return jnp.pad(x, [(0, size - n) if i == axis else (0, 0) for i, n in enumerate(x.shape)])


def add_at(x: Array, start: tuple[Any, ...], y: Array) -> Array:
    """x with y added to its part that begins at `start`; y is first summed over the axes that have length 1 in x. The
    last entry of `start` may be an array with a number for each sequence. XLA adds in place.
    """
    y = jnp.sum(y, [axis for axis, n in enumerate(x.shape) if n == 1 < y.shape[axis]], keepdims=True)
    if jnp.ndim(start[-1]) == 1:
        return jax.vmap(lambda x, last, y: add_at(x, (*start[1:-1], last), y))(x, start[-1], y)
    return jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(x, start, y.shape) + y, start)
