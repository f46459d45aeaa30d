"""Heads that are computed as one, and apart again."""

from typing import Any

Array = Any  # as in `ops`


def join_heads(x: Array, groups: int) -> Array:
    """The heads of each group as one: `b t h k` -> `b t groups (h/groups k)`."""
    b, t, h, k = x.shape
    return x.reshape((b, t, groups, h // groups * k))


def reshape_as(x: Array, like: Array) -> Array:
    """The entries of x in the shape of `like`."""
    return x.reshape(like.shape)
