"""Arrays in parts and in another order: pages of a pool, rows and positions of sequences, heads in groups."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attn_jax.ops.sharded import head_shards, with_rows_of_sequences, with_whole_heads

Array = Any  # as in `ops`


def take_pages(pool: Array, index: Array) -> Array:
    """Pages of a pool by an index that must fit: `n p ...`, `b c` -> `b c p ...`. A traced one outside gives NaN.

    On a mesh with explicit axes a page lies where its index does.
    """
    pool, index = jnp.asarray(pool), jnp.where(index < 0, pool.shape[0], index)
    rows, widths = jax.typeof(index).sharding.spec, jax.typeof(pool).sharding.spec[1:]
    mesh = next((m for m in map(mesh_of, (pool, index)) if AxisType.Explicit in m.axis_types), None)
    widths = (axis if axis not in rows else None for axis in widths)
    sharding = None if mesh is None else NamedSharding(mesh, P(*rows, *widths))
    return pool.at[index].get(mode="fill", fill_value=jnp.nan, out_sharding=sharding)


def mesh_of(x: Array) -> Any:
    return jax.typeof(x).sharding.mesh


def write_entries(pool: Array, page: Array, place: Array, x: Array, is_written: Array) -> Array:
    """The pool with some entries of x written: `n p ...`, thrice `b t` and `b t ...` -> `n p ...`.

    Under jit in place if it is donated. What would be outside is not written.
    """
    pool, outside = jnp.asarray(pool), pool.shape[0]
    page = jnp.where(is_written & (page >= 0), page, outside)
    sharding = jax.typeof(pool).sharding if AxisType.Explicit in mesh_of(pool).axis_types else None
    return pool.at[page, place].set(x, mode="drop", out_sharding=sharding)


def split_rows(x: Array, rows: int) -> Array:
    """Batch rows as sequences of some rows each: `(b h) ...` -> `b h ...`."""
    x = with_rows_of_sequences(x, x.shape[0] // rows)
    return x.reshape(x.shape[0] // rows, rows, *x.shape[1:])


def group_heads(x: Array, heads: int) -> Array:
    """Query heads by the head of keys that they share: `b t (g r) k` -> `b t g r k`."""
    # On a mesh with explicit axes JAX splits them where no group lies on several devices.
    x = with_whole_heads(x) if heads % head_shards(x) else x
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads, x.shape[3])


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


def real_first(real: Array) -> Array:
    """The positions, those where the mask is True first, each kind in its order: `b t` -> `b t`."""
    return jnp.argsort(~real, axis=1, stable=True)


def take_positions(x: Array, index: Array) -> Array:
    """Positions of each sequence by an index that must fit: `b n ...`, `b t` -> `b t ...`."""
    index = index.reshape(*index.shape, *(1 for _ in x.shape[2:]))
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")


def latest(places: Array) -> Array:
    """The largest entry up to each position, `b t`."""
    return jax.lax.cummax(places, 1)
