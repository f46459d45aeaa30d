"""Batches with padding: it is seen, or sequences of different lengths share their positions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.ports.step_mistakes.base import ALL, Change, both, in_steps, row, seen
from parity_tests.ports.steps import View


def shift(view: View) -> np.ndarray:
    """How many positions fewer than the longest each sequence had after the piece of each column, `b c`."""
    count = np.cumsum(view.true_key >= 0, 1)[:, np.searchsorted(view.piece, view.piece, "right") - 1]
    return count.max(0) - count


def as_the_longest(view: View) -> View:
    """A step's positions as those of the longest sequence."""
    return both(lambda v: v.query_at + shift(v)[:, v.start : v.stop], in_steps(lambda v: v.key_at + shift(v)))(view)


def by_column(view: View) -> View:
    """A step's positions as the number of columns, padding too."""
    return both(lambda v: v.start + row(v), in_steps(lambda v: v.columns))(view)


def padding_seen(at: Callable[[View], Any], where: Callable[[View], Any]) -> Change:
    """Keys of padding are seen, at some position."""

    def change(view: View) -> View:
        there = (view.columns < view.stop) & np.broadcast_to(where(view), view.columns.shape)
        padding = (view.true_key < 0) & there
        sees = padding[:, None] & (view.columns <= (view.start + row(view))[:, None])
        moved = np.where(padding, np.broadcast_to(at(view), view.key_at.shape), view.key_at)
        return replace(view, visible=view.visible | sees, key_at=moved)

    return change


PLACES: tuple[Callable[[View], Any], ...] = (
    lambda v: 0,
    lambda v: 1,
    lambda v: v.columns,
)


def counted(view: View) -> View:
    """Padding is a position as any other."""
    view = both(lambda v: v.start + row(v), lambda v: v.columns)(view)
    return padding_seen(lambda v: v.columns, lambda v: True)(view)


PADDING_MISTAKES = (
    seen(
        "padding is seen",
        "leave padding out of the cache, or hide its keys in every later step, too",
        *(padding_seen(at, lambda v: True) for at in PLACES),
        counted,
        where=ALL,
    ),
    seen(
        "padding is seen in steps",
        "hide the keys of padding in every later step, too",
        *(padding_seen(at, lambda v: True) for at in PLACES),
        *(padding_seen(at, lambda v: v.piece == 0) for at in PLACES),
        counted,
    ),
    seen(
        "one position for all sequences",
        "count the positions of each sequence by itself: those with padding are behind",
        by_column,
        as_the_longest,
    ),
)
