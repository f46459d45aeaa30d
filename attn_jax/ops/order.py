"""Positions of each sequence in another order."""

from typing import Any

import jax
import jax.numpy as jnp

Array = Any  # as in `ops`


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
