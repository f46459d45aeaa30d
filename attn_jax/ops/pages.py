"""Pages of a pool: reading those of a table, and writing entries into them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

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
    outside = pool.shape[0]
    page = jnp.where(is_written & (page >= 0), page, outside)
    sharding = jax.typeof(pool).sharding if AxisType.Explicit in mesh_of(pool).axis_types else None
    return pool.at[page, place].set(x, mode="drop", out_sharding=sharding)
