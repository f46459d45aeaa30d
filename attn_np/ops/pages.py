"""Pages of a pool: reading those of a table, and writing entries into them."""

from typing import Any

Array = Any  # any array with NumPy's protocols


def take_pages(pool: Array, index: Array) -> Array:
    """Pages of a pool by an index that must fit: `n p ...`, `b c` -> `b c p ...`."""
    return pool[index]


def write_entries(pool: Array, page: Array, place: Array, x: Array, is_written: Array) -> Array:
    """The pool with some entries of x written: `n p ...`, thrice `b t` and `b t ...` -> `n p ...`. In place."""
    pool[page[is_written], place[is_written]] = x[is_written]
    return pool
