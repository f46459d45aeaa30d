"""Steps whose queries see too much or too little: masks, windows, slots."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parity_tests.ports.step_mistakes.base import ALL, PROMPT, Change, both, in_steps, offset, row, seen, size
from parity_tests.ports.steps import View


def stuck(view: View) -> View:
    """The positions of a cache that holds the prompt alone."""
    prompt = int(np.sum(view.piece == 0))
    return both(lambda v: prompt + row(v), in_steps(lambda v: prompt + offset(v)))(view)


def visible(of: Callable[[View], np.ndarray]) -> Change:
    """Other keys that are seen."""
    return lambda view: replace(view, visible=np.broadcast_to(of(view), view.visible.shape))


def first_key(view: View) -> np.ndarray:
    """Causality and window counted from the first key and query of a step."""
    ahead = view.columns[None] - row(view)[:, None]
    band = (ahead <= 0) & (True if view.window is None else ahead >= -view.window)
    return band[None] & (view.columns < view.stop)


def of_window(more: int) -> Change:
    """A window that is wider by so many keys."""
    return visible(lambda v: v.visible if v.window is None else v.band(v.window + more))


def overwritten(view: View) -> np.ndarray:
    """Keys that a ring still holds once the step's own are written."""
    if view.window is None:
        return view.visible
    return view.visible & (view.true_key >= view.true_query.max(1, keepdims=True) - view.window)[:, None]


def empty_slots(view: View) -> np.ndarray:
    """The slots of a cache for all positions that nothing was written to."""
    there = view.piece < view.piece.max()
    return view.visible | ((view.columns >= view.stop) & there)


def all_slots(view: View) -> np.ndarray:
    """Every slot of a cache for all positions."""
    return np.broadcast_to(view.piece < view.piece.max(), view.visible.shape)


def empty_ring(view: View) -> np.ndarray:
    """The slots of a ring that nothing was written to, before it is full."""
    if view.window is None:
        return view.visible
    ends = view.columns - np.searchsorted(view.piece, view.piece.max())
    left = np.maximum(view.window - view.true_query, 0)[:, :, None]
    return view.visible | ((ends >= 0) & (ends < left))


def one_slot_late(view: View) -> np.ndarray:
    """What a query sees by its slot: an empty one, and not its own key."""
    own = view.true_key[:, None] == view.true_query[:, :, None]
    return (view.visible & ~own) | (view.columns == len(view.columns) - 1)


def one_slot_early(view: View) -> np.ndarray:
    """What a query sees by its slot: the key after its own, or an empty slot, and not the last of the prompt."""
    last = view.columns == np.sum(view.piece == 0) - 1
    ahead = view.true_query[:, :, None] + 1 >= view.stop
    return (view.band(view.window, 1) & ~last) | ((view.columns == len(view.columns) - 1) & ahead)


def counted_short(view: View) -> View:
    """A count that is one too small in every step: the last key of the piece before is written over."""
    last = (offset(view) == size(view) - 1) & (view.columns < view.start)
    view = replace(view, visible=view.visible & ~last)
    return both(lambda v: v.query_at - v.number, in_steps(lambda v: v.key_at - v.piece))(view)


CAUSAL = "let a query see the keys up to its own position: with a cache of s - t positions a mask of t s is tril(s - t)"
VIEWS = (
    seen(
        "causal mask of a step aligned at the first key",
        "is_causal=True counts queries from the first key: give a step the mask tril(s - t), or none for one query",
        visible(first_key),
    ),
    seen(
        "causal mask of single positions aligned at the first key: each query sees that key alone",
        "is_causal=True counts queries from the first key: give one query no mask beside its cache",
        visible(lambda v: v.real & (v.columns == 0)),
        where=ALL,
    ),
    seen("no causal mask in the prompt", CAUSAL, visible(lambda v: v.band(v.window, None)), where=PROMPT),
    seen(
        "no causal mask: new positions see those after them",
        CAUSAL,
        visible(lambda v: v.band(v.window, None)),
        where=ALL,
    ),
    seen("no causal mask in a step of several positions", CAUSAL, visible(lambda v: v.band(v.window, None))),
    seen(
        "the newest key is not seen",
        "append first, attend then: a query sees its own position",
        visible(lambda v: v.visible & (v.true_key[:, None] != v.true_query[:, :, None])),
    ),
    seen(
        "one key of the future is seen",
        "in a step of several positions each sees the cache and the new ones up to its own",
        visible(lambda v: v.band(v.window, 1)),
    ),
    seen(
        "the cache is not seen",
        "attend to the cached keys and values too, not to those of this step alone",
        visible(lambda v: v.visible & v.new),
    ),
    seen(
        "the cache holds the last step alone",
        "append to the cache what a step adds, and keep what it held",
        visible(lambda v: v.visible & (v.piece >= v.number - 1)),
    ),
    seen(
        "mask of the prompt in steps: keys after the prompt are not seen",
        "make the mask anew in every step: it grows with the cache",
        visible(lambda v: v.visible & (v.piece == 0)),
    ),
    seen(
        "the cache is not updated after the prompt",
        "hand on the cache that a step returns",
        visible(lambda v: v.visible & ((v.piece == 0) | v.new)),
        lambda v: stuck(visible(lambda w: w.visible & ((w.piece == 0) | w.new))(v)),
    ),
    seen(
        "window in the prompt alone, none in steps",
        "hide the keys outside of the window in steps, too",
        visible(lambda v: v.band(None)),
    ),
    seen(
        "window in steps alone, none in the prompt",
        "hide the keys outside of the window in the prompt, too",
        visible(lambda v: v.band(None)),
        where=PROMPT,
    ),
    seen(
        "window one key too narrow in steps, as with a ring of slots that is one too short",
        "keep left + 1 positions for window=(left, 0): the earlier keys and a query's own",
        of_window(-1),
    ),
    seen(
        "window one key too wide in steps",
        "window=(left, 0) is left earlier keys and a query's own, left + 1 in all",
        of_window(1),
    ),
    seen(
        "window one key too narrow, as with a ring of slots that is one too short",
        "keep left + 1 positions for window=(left, 0): the earlier keys and a query's own",
        of_window(-1),
        where=ALL,
    ),
    seen(
        "new keys of a step are written over slots that its first queries see",
        "attend to the ring's old keys and the new ones, and write then",
        visible(overwritten),
    ),
    seen(
        "new keys of a piece, also of the prompt, are written over slots that its first queries see",
        "attend to the ring's old keys and the new ones, and write then",
        visible(overwritten),
        where=ALL,
    ),
    seen(
        "slots that were never written are seen",
        "hide the slots behind the last cached position: a key of 0 has a weight, too",
        visible(empty_slots),
        visible(all_slots),
        visible(empty_ring),
    ),
    seen(
        "slots that were never written are seen, also by the prompt",
        "hide the slots behind the last cached position: a key of 0 has a weight, too",
        visible(empty_slots),
        visible(all_slots),
        visible(empty_ring),
        where=ALL,
    ),
    seen(
        "keys and values written one slot too late",
        "write new entries at the number of cached positions, without a slot left empty",
        visible(one_slot_late),
    ),
    seen(
        "keys and values written one slot too early",
        "write new entries behind the last cached one, not over it",
        visible(one_slot_early),
    ),
    seen(
        "cache length one too small",
        "count every cached position: the last one is written over, and what follows has its position",
        counted_short,
    ),
)
