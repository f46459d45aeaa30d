"""Positions of each sequence in another order."""

from typing import Any

import numpy as np

Array = Any  # any array with NumPy's protocols


def real_first(real: Array) -> Array:
    """The positions, those where the mask is True first, each kind in its order: `b t` -> `b t`."""
    return np.argsort(~real, axis=1, kind="stable")


def take_positions(x: Array, index: Array) -> Array:
    """Positions of each sequence by an index that must fit: `b n ...`, `b t` -> `b t ...`."""
    return x[np.arange(x.shape[0])[:, None], index]


def latest(places: Array) -> Array:
    """The largest entry up to each position, `b t`."""
    return np.maximum.accumulate(places, axis=1)
