"""Arrays in parts: pages of a pool, rows of sequences, heads that share one of keys."""

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
