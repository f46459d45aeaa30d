"""The largest entries of an axis: themselves in order, their indices, and where these are."""

from typing import Any

import numpy as np

Array = Any  # as in `ops`


def largest_first(x: Array) -> Array:
    """The entries of the last axis from the largest to the smallest, without a gradient."""
    return np.sort(x, axis=-1)[..., ::-1]


def largest_indices(x: Array, count: int) -> Array:
    """The indices of the `count` largest entries of the last axis, largest first; no gradient.

    Of equals it takes the first, but of those that are -inf any.
    """
    n = x.shape[-1]
    if n <= count or count == 0 or x.size == 0:
        return first_of_sorted(x, count)
    rows = x.reshape(-1, n)
    index = np.sort(np.argpartition(rows, n - count, axis=-1)[:, n - count :], axis=-1)
    entries = np.take_along_axis(rows, index, -1)
    index = np.take_along_axis(index, np.argsort(-entries, axis=-1, kind="stable"), -1)
    # A sort takes ten times as long, and only tells rows in which others are equal to the least, or have NaN.
    least = np.min(entries, axis=-1, keepdims=True)
    tied = (least[:, 0] != -np.inf) & (np.count_nonzero(rows >= least, axis=-1) != count)
    if tied.any():
        index[tied] = first_of_sorted(rows[tied], count)
    return index.reshape(*x.shape[:-1], count)


def first_of_sorted(x: Array, count: int) -> Array:
    """`largest_indices` by a stable sort of all."""
    x = np.where(np.isnan(x), np.inf, x)  # NaN is the largest in the other packages
    return np.argsort(-x, axis=-1, kind="stable")[..., :count]


def mark_indices(index: Array, n: int) -> Array:
    """True at the indices of the last axis: `... m` -> `... n`. The index n is none; other indices must fit."""
    marks = np.zeros((*index.shape[:-1], n + 1), bool)
    np.put_along_axis(marks, index, True, -1)
    return marks[..., :n]
