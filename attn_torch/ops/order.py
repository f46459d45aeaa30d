"""Positions of each sequence in another order."""

from typing import Any

import torch

Array = Any  # as in `ops`


def real_first(real: Array) -> Array:
    """The positions, those where the mask is True first, each kind in its order: `b t` -> `b t`."""
    return torch.argsort((~real).to(torch.uint8), dim=1, stable=True)


def take_positions(x: Array, index: Array) -> Array:
    """Positions of each sequence by an index that must fit: `b n ...`, `b t` -> `b t ...`."""
    return torch.take_along_dim(x, index.reshape(*index.shape, *(1 for _ in x.shape[2:])), dim=1)


def latest(places: Array) -> Array:
    """The largest entry up to each position, `b t`."""
    return torch.cummax(places, dim=1).values
