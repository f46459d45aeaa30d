"""Queries and keys of steps at wrong positions."""

from dataclasses import replace

import numpy as np

from parity_tests.ports.step_mistakes.base import ALL, both, in_steps, keys, offset, queries, row, seen, size
from parity_tests.ports.steps import Decoding, View


def first_of_piece(view: View) -> np.ndarray:
    return view.key_at - offset(view)


def last_of_piece(view: View) -> np.ndarray:
    return view.key_at - offset(view) + size(view) - 1


def turned_again(view: View) -> np.ndarray:
    """Positions of keys that each later step rotates once more."""
    return view.key_at * np.where(view.columns < view.stop, 1 + view.number - view.piece, 1)


def new_first(view: View) -> list[int]:
    """The columns in the order of a cache to whose front each step adds."""
    order: list[int] = []
    for number in range(view.number + 1):
        order = [*np.flatnonzero(view.piece == number).tolist(), *order]
    return order


def placed_before(view: View, masked: bool, counted: bool) -> View:
    """New keys before old ones: the mask, the positions, or both, go by the place in the cache."""
    order, n = new_first(view), view.stop - view.start
    if masked:
        visible = np.zeros_like(view.visible)
        at = np.arange(len(order))[None] - (row(view)[:, None] + len(order) - n)
        band = (at <= 0) & (True if view.window is None else at >= -view.window)
        visible[:, :, order] = band
        view = replace(view, visible=visible)
    if counted:
        at = np.array(view.key_at)
        at[:, order] = np.arange(len(order))
        view = replace(view, key_at=at, query_at=np.broadcast_to(len(order) - n + row(view), view.query_at.shape))
    return view


def rotates(decoding: Decoding) -> bool:
    """Whether a layer rotates queries and keys."""
    return getattr(decoding.config, "rope_base", None) is not None


def adds(decoding: Decoding) -> bool:
    """Whether it does not, so that its positions are distances."""
    return not rotates(decoding)


ROTATION = "rotate a key once, by its own position, when it enters the cache"
POSITIONS = (
    seen(
        "cache position one too large",
        "count positions from 0: the first new one is at the number of positions cached before the step",
        both(lambda v: v.query_at + 1, in_steps(lambda v: v.key_at + 1)),
        both(lambda v: v.query_at + len(row(v)), in_steps(lambda v: v.key_at + size(v))),
    ),
    seen(
        "cache position one too small",
        "the first new position is the number of cached positions, not the last cached one",
        both(lambda v: v.query_at - 1, in_steps(lambda v: v.key_at - 1)),
    ),
    seen(
        "positions start again at 0 in every step",
        "add the number of cached positions to those of the new ones",
        both(row, in_steps(offset)),
    ),
    seen(
        "one position for all new positions of a step",
        "give each new position its own: the number of cached ones plus its place in the step",
        both(lambda v: v.query_at - row(v), in_steps(first_of_piece)),
        both(lambda v: v.query_at - row(v) + len(row(v)) - 1, in_steps(last_of_piece)),
    ),
    seen(
        "one position for all new positions of a step, and of the prompt",
        "give each new position its own: the number of cached ones plus its place in the step",
        both(lambda v: v.query_at - row(v), first_of_piece),
        both(lambda v: v.query_at - row(v) + len(row(v)) - 1, last_of_piece),
        where=ALL,
    ),
    seen(
        "queries of a step are one position ahead of their own; keys are right",
        "encode query and key of a position at the same position",
        queries(lambda v: v.query_at + 1),
    ),
    seen(
        "queries of a step are one position behind their own; keys are right",
        "encode query and key of a position at the same position",
        queries(lambda v: v.query_at - 1),
    ),
    seen(
        "queries of a step are counted from 0, keys from the first one: the first rows of a bias, or of a rotation",
        "take the rows of the step's own positions, those from the number of cached positions on",
        queries(row),
    ),
    seen(
        "one position for all queries of a step: one row of a bias, or of a rotation",
        "give each query of a step the row of its own position",
        queries(lambda v: v.query_at - row(v) + len(row(v)) - 1),
        queries(lambda v: v.query_at - row(v)),
    ),
    seen(
        "one position for all queries of a step, and of the prompt: one row of a bias, or of a rotation",
        "give each query the row of its own position",
        queries(lambda v: v.query_at - row(v) + len(row(v)) - 1),
        queries(lambda v: v.query_at - row(v)),
        where=ALL,
    ),
    seen(
        "new keys of a step are at position 0: they are not rotated",
        "rotate a step's new keys by their positions before they are cached",
        keys(in_steps(lambda v: 0)),
        of=rotates,
    ),
    seen(
        "queries of a step are at position 0: they are not rotated",
        "rotate a step's queries by their positions",
        queries(lambda v: 0),
        of=rotates,
    ),
    seen(
        "distances of a step are counted from position 0, or have the other sign",
        "count a step's distances from its own positions: they grow from the query back to the first key",
        queries(lambda v: 0),
        of=adds,
    ),
    seen(
        "queries and new keys of a step are at position 0: they are not rotated",
        "rotate a step's queries and keys by their positions",
        both(lambda v: 0, in_steps(lambda v: 0)),
        of=rotates,
    ),
    seen(
        "cached keys are rotated again in every step",
        ROTATION,
        keys(turned_again),
        keys(lambda v: np.where(v.columns < v.start, 2 * v.key_at, v.key_at)),
        of=rotates,
    ),
    seen(
        "new keys are placed before the cached ones",
        "append new keys and values behind the cached ones",
        lambda v: placed_before(v, True, False),
        lambda v: placed_before(v, True, True),
        lambda v: placed_before(v, False, True),
    ),
)
