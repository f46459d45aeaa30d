"""Arrays in parts and in another order: pages of a pool, rows and positions of sequences, heads in groups."""

from typing import Any

import numpy as np

Array = Any  # any array with NumPy's protocols


def take_pages(pool: Array, index: Array) -> Array:
    """Pages of a pool by an index that must fit: `n p ...`, `b c` -> `b c p ...`."""
    return pool[index]


def write_entries(pool: Array, page: Array, place: Array, x: Array, is_written: Array) -> Array:
    """The pool with some entries of x written: `n p ...`, thrice `b t` and `b t ...` -> `n p ...`. In place."""
    if isinstance(pool, np.ndarray) and not pool.flags.writeable:
        raise ValueError("write_pages: expected pages that can be written to, got a read-only array; pass a copy")
    pool[page[is_written], place[is_written]] = x[is_written]
    return pool


def split_rows(x: Array, rows: int) -> Array:
    """Batch rows as sequences of some rows each: `(b h) ...` -> `b h ...`."""
    return x.reshape(x.shape[0] // rows, rows, *x.shape[1:])


def group_heads(x: Array, heads: int) -> Array:
    """Query heads by the head of keys that they share: `b t (g r) k` -> `b t g r k`."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads, x.shape[3])


def join_heads(x: Array, groups: int) -> Array:
    """The heads of each group as one: `b t h k` -> `b t groups (h/groups k)`."""
    b, t, h, k = x.shape
    return x.reshape((b, t, groups, h // groups * k))


def reshape_as(x: Array, like: Array) -> Array:
    """The entries of x in the shape of `like`."""
    return x.reshape(like.shape)


def real_first(real: Array) -> Array:
    """The positions, those where the mask is True first, each kind in its order: `b t` -> `b t`."""
    return np.argsort(~real, axis=1, kind="stable")


def take_positions(x: Array, index: Array) -> Array:
    """Positions of each sequence by an index that must fit: `b n ...`, `b t` -> `b t ...`."""
    return x[np.arange(x.shape[0])[:, None], index]


def latest(places: Array) -> Array:
    """The largest entry up to each position, `b t`."""
    return np.maximum.accumulate(places, axis=1)
