"""What goes wrong in steps with a cache: each mistake is made in our own decoding, in every way it is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np

from attn_np._decode import Cache
from attn_np._ops import DTYPES
from parity_tests.judge.candidates import numpy_layer
from parity_tests.ports.steps import Arrays, Decoding, View

Pieces = Iterator[np.ndarray]
Change = Callable[[View], View]
NARROW = ("bfloat16", "float16")


@dataclass(frozen=True)
class StepMistake:
    """A mistake with a cache.

    Attributes:
        name, fix: the mistake in words, and what to do about it in one line.
        runs: the outputs of our pieces with the mistake, one run for each way of writing it.
        whole: whether a prompt of the whole sequence shows it, too.
    """

    name: str
    fix: str
    runs: Callable[[Decoding], Iterator[Pieces]]
    whole: bool = False


STEPS, PROMPT, ALL = "steps", "prompt", "all"


def attended(decoding: Decoding, change: Change, where: str, touch: Any = None) -> Pieces:
    """The pieces with another view of some: of those after the prompt, of the prompt or of all."""
    for number in range(len(decoding.plan)):
        view = decoding.view(number)
        here = where == ALL or (where == PROMPT) == (number == 0)
        yield decoding.attended(change(view) if here else view, touch if here else None)


def seen(
    name: str, fix: str, *changes: Change, where: str = STEPS, of: Callable[[Decoding], bool] = lambda _: True
) -> StepMistake:
    """A mistake in the positions of a piece, or in who sees whom; in a cache of entries, of layers of some kind."""

    def runs(decoding: Decoding) -> Iterator[Pieces]:
        return (attended(decoding, change, where) for change in changes if decoding.has_entries and of(decoding))

    return StepMistake(name, fix, runs, where != STEPS)


# Positions ------------------------------------------------------------------------------------------------------------


def queries(of: Callable[[View], Any]) -> Change:
    """Other positions of the queries."""
    return lambda view: replace(view, query_at=np.broadcast_to(of(view), view.query_at.shape))


def keys(of: Callable[[View], Any]) -> Change:
    """Other positions of the keys."""
    return lambda view: replace(view, key_at=np.broadcast_to(of(view), view.key_at.shape))


def both(query_of: Callable[[View], Any], key_of: Callable[[View], Any]) -> Change:
    return lambda view: keys(key_of)(queries(query_of)(view))


def stepped(view: View) -> np.ndarray:
    """The columns that came after the prompt, and are there."""
    return (view.piece > 0) & (view.columns < view.stop)


def in_steps(of: Callable[[View], Any]) -> Callable[[View], Any]:
    """These positions for keys that came after the prompt, their own for others."""
    return lambda view: np.where(stepped(view), of(view), view.key_at)


def offset(view: View) -> np.ndarray:
    """`c`, the place of each column in its piece."""
    return view.columns - np.searchsorted(view.piece, view.piece)


def size(view: View) -> np.ndarray:
    """`c`, how many columns came with each."""
    return np.searchsorted(view.piece, view.piece, "right") - np.searchsorted(view.piece, view.piece)


def row(view: View) -> np.ndarray:
    """`n`, the place of each query in its piece."""
    return np.arange(view.stop - view.start)


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
        order = [*np.flatnonzero(view.piece == number), *order]
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


def stuck(view: View) -> View:
    """The positions of a cache that holds the prompt alone."""
    prompt = int(np.sum(view.piece == 0))
    return both(lambda v: prompt + row(v), in_steps(lambda v: prompt + offset(v)))(view)


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


# Who sees whom --------------------------------------------------------------------------------------------------------


def visible(of: Callable[[View], np.ndarray]) -> Change:
    """Other keys that are seen."""
    return lambda view: replace(view, visible=np.broadcast_to(of(view), view.visible.shape))


def first_key(view: View) -> np.ndarray:
    """Causality and window counted from the first key and query of a step."""
    ahead = view.columns[None] - row(view)[:, None]
    band = (ahead <= 0) & (True if view.window is None else ahead >= -view.window)
    return band[None] & (view.columns < view.stop)


def of_window(more: int, left: bool = True) -> Change | None:
    """A window that is wider by so many keys."""
    return visible(lambda v: v.visible if v.window is None else v.band(v.window + more if left else None))


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


# What the cache holds -------------------------------------------------------------------------------------------------


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(DTYPES[dtype]).astype(np.float64)


def subsets(decoding: Decoding) -> list[tuple[str, ...]]:
    """All arrays of a cache, and each by itself."""
    names = tuple(decoding.config.cache_axes()) or ("state",)
    return [names, *((name,) for name in names if len(names) > 1)]


def narrowed(decoding: Decoding, dtype: str) -> Iterator[Pieces]:
    """Runs with some of the cached arrays in a narrow type; new entries may be seen before they are rounded."""
    for names in subsets(decoding):
        if not decoding.has_entries:
            yield decoding.layered(touch=lambda _, __, x, names=names: changed(x, names, lambda z: rounded(z, dtype)))
            continue
        for own in (False, True):

            def touch(view: View, arrays: Arrays, names: tuple[str, ...] = names, own: bool = own) -> Arrays:
                old = view.columns[: next(iter(arrays.values())).shape[1]] < (view.stop if own else view.start)
                return {
                    n: np.where(old.reshape(-1, *[1] * (x.ndim - 2)), rounded(x, dtype), x) if n in names else x
                    for n, x in arrays.items()
                }

            yield attended(decoding, lambda v: v, ALL, touch)


def changed(arrays: Arrays, names: tuple[str, ...], change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    return {n: change(x) if n in names else x for n, x in arrays.items()}


def batch_axes(decoding: Decoding) -> dict[str, int]:
    """Which axis of each cached array counts the sequences."""
    axes = decoding.config.cache_axes() or {"state": "l b e"}
    return {name: letters.split().index("b") for name, letters in axes.items()}


def first_rows(x: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(np.take(x, [0], axis), x.shape)


# Of a column: how often it was exchanged, by its piece and the step that reads it.
EXCHANGES: tuple[Callable[[np.ndarray, int], np.ndarray], ...] = (
    lambda piece, number: number - np.maximum(piece, 1),
    lambda piece, number: number - piece,
    lambda piece, number: piece == 0,
    lambda piece, number: piece < number,
)


def reordered(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which cached sequences change places, in every step or once; of all arrays or of some."""
    axes = batch_axes(decoding)
    if not decoding.has_entries:
        for once in (False, True):
            yield decoding.layered(
                touch=lambda i, _, x, once=once: {
                    n: np.flip(z, axes[n]) if not (once and i) else z for n, z in x.items()
                }
            )
            yield decoding.layered(
                touch=lambda i, _, x, once=once: {
                    n: np.flip(z, axes[n]) if i and not (once and i > 1) else z for n, z in x.items()
                }
            )
        return
    for times, names in product(EXCHANGES, subsets(decoding)):

        def touch(view: View, arrays: Arrays, times: Any = times, names: tuple[str, ...] = names) -> Arrays:
            return {n: np.where(odd(view, times, x), x[::-1], x) if n in names else x for n, x in arrays.items()}

        yield attended(decoding, lambda v: v, STEPS, touch)


def odd(view: View, times: Any, x: np.ndarray) -> np.ndarray:
    """`c` and axes of 1, the cached columns that were exchanged an odd number of times."""
    piece = view.piece[: x.shape[1]]
    return ((times(piece, view.number) % 2 == 1) & (piece < view.number)).reshape(-1, *[1] * (x.ndim - 2))


def exchanged(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which two cached arrays of one shape change places, in every step or where they are read."""
    names = [*decoding.config.cache_axes()]
    for times in (EXCHANGES[1], EXCHANGES[3]) if decoding.has_entries and len(names) == 2 else ():

        def touch(view: View, arrays: Arrays, times: Any = times) -> Arrays:
            a, b = (arrays[name] for name in names)
            here = odd(view, times, a)
            return dict(zip(names, (np.where(here, b, a), np.where(here, a, b)), strict=True))

        yield attended(decoding, lambda v: v, STEPS, touch)


def twice(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which the cache holds the last position of the prompt twice; what follows may count both."""

    def again(view: View) -> View:
        return replace(view, visible=view.visible | (view.columns == len(view.columns) - 1))

    def counting(view: View) -> View:
        return both(lambda v: v.query_at + 1, in_steps(lambda v: v.key_at + 1))(again(view))

    def touch(view: View, arrays: Arrays) -> Arrays:
        last = int(np.sum(view.piece == 0)) - 1
        count = {name: len(view.columns) - x.shape[1] for name, x in arrays.items()}
        return {n: np.concatenate([x, *[x[:, last : last + 1]] * count[n]], 1) for n, x in arrays.items()}

    for change in (again, counting) if decoding.has_entries else ():
        yield attended(decoding, change, STEPS, touch)


def of_first_row(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which every sequence has the cache of the first."""
    axes = batch_axes(decoding)
    if not decoding.has_entries:
        yield decoding.layered(touch=lambda _, __, x: {n: first_rows(z, axes[n]) for n, z in x.items()})
        return
    for own in (True, False):

        def touch(view: View, arrays: Arrays, own: bool = own) -> Arrays:
            piece = view.piece[: next(iter(arrays.values())).shape[1]]
            here = (piece <= view.number) if own else (piece < view.number)
            return {n: np.where(here.reshape(-1, *[1] * (x.ndim - 2)), x[:1], x) for n, x in arrays.items()}

        yield attended(decoding, lambda v: v, STEPS, touch)


# States ---------------------------------------------------------------------------------------------------------------


def of_state(*makers: Callable[[Decoding], Iterator[Pieces]]) -> Callable[[Decoding], Iterator[Pieces]]:
    return lambda decoding: chain() if decoding.has_entries else chain(*(make(decoding) for make in makers))


def lost(decoding: Decoding, names: tuple[str, ...]) -> Iterator[Pieces]:
    """A run in which some of the cached arrays start from 0 in every step."""
    yield decoding.layered(touch=lambda _, __, x: changed(x, names, np.zeros_like))


def lost_alone(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which the short windows, or the state beside them, start from 0 in every step."""
    names = [name for name in decoding.config.cache_axes() if name != "state"]
    for some in (tuple(names), *((name,) for name in names)):
        if some:
            yield from lost(decoding, some)
            yield from frozen(decoding, some)


def frozen(decoding: Decoding, names: tuple[str, ...]) -> Iterator[Pieces]:
    """Runs in which some of the cached arrays stay as they are after the prompt, or in steps of one position."""
    yield decoding.layered(touch=lambda i, old, x: changed_to(x, old, names) if i else x)
    ones = [piece.shape[1] == 1 for piece in decoding.plan]
    yield decoding.layered(touch=lambda i, old, x: changed_to(x, old, names) if ones[i] else x)


def changed_to(arrays: Arrays, others: Arrays, names: tuple[str, ...]) -> Arrays:
    return {n: others[n] if n in names else x for n, x in arrays.items()}


def partly(decoding: Decoding, which: int, where: str) -> Iterator[Pieces]:
    """A run in which one position of a piece alone, its first or its last, gets into the state."""
    cache, outputs = decoding.empty(), []
    for i, x, at in decoding.pieces():
        y, after = decoding.advance(decoding.layer, x, at, cache)
        if x.shape[1] > 1 and (i or where == ALL):
            column = slice(0, 1) if which == 0 else slice(-1, None)
            after = replace(
                after, arrays=decoding.advance(decoding.layer, x[:, column], at[:, column], cache)[1].arrays
            )
        cache = after
        outputs.append(y)
    yield iter(outputs)


class Tapped(dict[str, Any]):
    """A tape that changes some of the arrays on it."""

    def __init__(self, **changes: Callable[[Any], Any]) -> None:
        super().__init__()
        self.changes = changes

    def tap(self, name: str, value: Any) -> Any:
        self[name] = self.changes[name](value) if name in self.changes else value
        return self[name]


def unfading(decoding: Decoding) -> Any:
    """A layer of fixed decays whose state does not fade; the layer itself where decays are on its tape."""
    config = decoding.config
    if not hasattr(config, "decay_rule"):
        return decoding.layer
    given = replace(config, decay=(float(np.nextafter(1.0, 0.0)),) * config.sizes()["h"])
    return numpy_layer(replace(decoding.case, given=given), decoding.drawn.params)


def one_by_one(decoding: Decoding, where: str, advance: Callable[[int, Any, Any, Cache], Any]) -> Iterator[Pieces]:
    """A run whose pieces, those after the prompt or all, are computed position by position by another rule."""
    cache, outputs = decoding.empty(), []
    for i, x, at in decoding.pieces():
        if where == STEPS and i == 0:
            y, cache = decoding.advance(decoding.layer, x, at, cache)
        else:
            parts = []
            for j in range(x.shape[1]):
                y, cache = advance(j, x[:, j : j + 1], at[:, j : j + 1], cache)
                parts.append(y)
            y = np.concatenate(parts, 1)
        outputs.append(y)
    yield iter(outputs)


def fading(decoding: Decoding, most: int, where: str = STEPS) -> Iterator[Pieces]:
    """A run in which only the first positions of a piece, so many at most, fade the state."""
    still = unfading(decoding)

    def advance(j: int, x: Any, at: Any, cache: Cache) -> Any:
        if j < most:
            return decoding.advance(decoding.layer, x, at, cache)
        return decoding.advance(still, x, at, cache, Tapped(log_decay=np.zeros_like))

    return one_by_one(decoding, where, advance)


def read_before(decoding: Decoding, where: str, faded: bool) -> Iterator[Pieces]:
    """A run in which a query reads the state before its own position writes, maybe once it has faded."""
    layer = decoding.layer if faded else unfading(decoding)
    nothing = dict.fromkeys(("v", "beta", *(() if faded else ("log_decay",))), np.zeros_like)

    def advance(_: int, x: Any, at: Any, cache: Cache) -> Any:
        y, _ = decoding.advance(layer, x, at, cache, Tapped(**nothing))
        return y, decoding.advance(decoding.layer, x, at, cache)[1]

    return one_by_one(decoding, where, advance)


def fades(decoding: Decoding) -> bool:
    return "state" in decoding.config.cache_axes() and decoding.config.variant not in ("linear", "delta")


def when(fits: Callable[[Decoding], bool], make: Callable[[Decoding], Iterator[Pieces]]) -> Any:
    return lambda decoding: make(decoding) if fits(decoding) else chain()


HELD = (
    *(
        StepMistake(
            f"cache in {dtype}: keys, values or states are rounded to 16 bits",
            "cache in the type of the layer, states in float32 or wider",
            lambda decoding, dtype=dtype: narrowed(decoding, dtype),
        )
        for dtype in NARROW
    ),
    StepMistake(
        "batch rows of the cache are in another order than those of the step",
        "reorder the cache with the sequences (beams), all of its arrays, once",
        reordered,
    ),
    StepMistake(
        "cached keys and values are exchanged",
        "return the cache in the order in which the next step takes it: keys, values",
        exchanged,
    ),
    StepMistake(
        "the last position of the prompt is in the cache twice",
        "begin the steps with the position after the prompt: its last one is in the cache already",
        twice,
    ),
    StepMistake("the cache of the first batch row used for all rows", "cache each sequence by itself", of_first_row),
    StepMistake(
        "the state of earlier steps is not used: each step starts from 0",
        "begin a step with the state that the step before returned",
        of_state(lambda d: lost(d, tuple(batch_axes(d)))),
    ),
    StepMistake(
        "the state is not updated after the prompt",
        "hand on the state that a step returns",
        of_state(lambda d: frozen(d, tuple(batch_axes(d)))),
    ),
    StepMistake(
        "the window of the short convolution is not carried from step to step",
        "cache the last inputs of the convolution, also where a step is shorter than the window",
        of_state(lost_alone),
    ),
    StepMistake(
        "only the last position of a step gets into the state",
        "write every new position into the state, one after the other",
        of_state(lambda d: partly(d, 1, STEPS), lambda d: partly(d, 1, ALL)),
    ),
    StepMistake(
        "only the first position of a step gets into the state",
        "write every new position into the state, one after the other",
        of_state(lambda d: partly(d, 0, STEPS), lambda d: partly(d, 0, ALL)),
    ),
    StepMistake(
        "decay once per step, not for each of its positions",
        "let the state decay at each new position of a step",
        of_state(when(fades, lambda d: chain(fading(d, 1), fading(d, 1, ALL)))),
    ),
    StepMistake(
        "the state is read before the position writes into it",
        "write a position's key and value into the state first, then let its query read",
        of_state(lambda d: chain(*(read_before(d, where, faded) for where in (STEPS, ALL) for faded in (False, True)))),
    ),
    StepMistake(
        "the state does not decay in steps",
        "let the state decay at each new position of a step",
        of_state(when(fades, lambda d: fading(d, 0))),
    ),
)

CACHE_MISTAKES = (*VIEWS, *POSITIONS, *HELD)


# Sequences of different lengths ---------------------------------------------------------------------------------------


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
