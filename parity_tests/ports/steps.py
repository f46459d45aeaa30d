"""Our own decoding of a call, piece by piece, as it should be or in another way.

What a layer caches is either one entry for each position, such as keys and values, or states. With entries a piece may
be seen as its queries and all entries so far, each at a position, and who sees whom: `View`. Another layer may compute
some of the pieces, and what the cache holds may change between two of them: `Decoding.layered`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attn_np.attention.decode import Cache, DecodeStep, begin_step, empty_cache, end_step
from attn_np.attention.masks import in_window
from attn_np.contract import Config
from attn_np.contract._decode import SPARE
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, Drawn, given
from parity_tests.judge.consequences import wide

Arrays = dict[str, np.ndarray]
# The positions of the first step: as few as tell a key too many from all of them.
STEP = 3


def schedule(b: int, t: int, ragged: bool) -> list[np.ndarray]:
    """The positions of each piece, `b n`; -1 for padding.

    A prompt of about half, then three positions, then single ones. In a ragged batch the first sequence is behind by
    the padding on the left of its prompt, and the others end before it does.
    """
    lags = lag_of(b, t, ragged)
    columns = t + int(lags.max())
    at = np.arange(columns) - lags
    at = np.where((at >= 0) & (at < t), at, -1)
    starts = [0, t // 2, *range(t // 2 + STEP, columns)] if t > 1 else [0]
    return [at[:, start:end] for start, end in zip(starts, [*starts[1:], columns], strict=True)]


def lag_of(b: int, t: int, ragged: bool) -> np.ndarray:
    """How many positions of padding the prompt of each sequence has on its left, `b 1`."""
    return min(2, t // 2 - 1) * (np.arange(b) == 0)[:, None] * ragged


def in_order(y: Any, t: int, ragged: bool) -> Any:
    """The outputs of all pieces, joined, at the positions of the sequences."""
    b = y.shape[0]
    return y[np.arange(b)[:, None], np.arange(t) + lag_of(b, t, ragged)] if ragged else y


def decodes(config: Config) -> bool:
    """Whether a layer computes a sequence in pieces: with a cache, or with a state that it takes and gives."""
    if config.cache_axes():
        return given(config, "plain") == ("query",)
    return passes_state(config) and "a_sequence_in_pieces" not in config.broken_relations()


def passes_state(config: Config) -> bool:
    """Whether a call takes the state before it and returns the one after it."""
    return {"x", "state"} <= {*config.arguments()} and given(config, "plain") == ("x",)


@dataclass(frozen=True)
class View:
    """What the queries of one piece attend to. Columns are what came in, padding too, in the order in which it came.

    Attributes:
        number: of the piece; 0 is the prompt.
        start, stop: its columns.
        piece: `c`, the number of the piece that each column came with.
        query_at, key_at: `b n`, `b c`: the positions that queries and keys are encoded at. Behind the last position of
            a sequence there are columns that hold 0, as slots that were never written.
        true_query, true_key: their positions in the sequences; -1 for padding, and for keys that are not there yet.
        visible: `b n c`, who sees whom.
        window: how many earlier keys a query sees; None for all.
    """

    number: int
    start: int
    stop: int
    piece: np.ndarray
    query_at: np.ndarray
    key_at: np.ndarray
    true_query: np.ndarray
    true_key: np.ndarray
    visible: np.ndarray
    window: int | None

    @property
    def columns(self) -> np.ndarray:
        return np.arange(len(self.piece))

    @property
    def new(self) -> np.ndarray:
        """`c`, which columns are those of the piece."""
        return (self.columns >= self.start) & (self.columns < self.stop)

    @property
    def real(self) -> np.ndarray:
        """`b n c`, the keys that are there, for each query that is real."""
        return (self.true_key >= 0)[:, None] & (self.true_query >= 0)[:, :, None]

    def band(self, left: int | None, right: int | None = 0) -> np.ndarray:
        """`b n c`, the keys from `left` before to `right` after each query's position; None for all."""
        return in_window(self.true_query, self.true_key, left, right) & self.real


@dataclass(frozen=True)
class Placed(DecodeStep):
    """A step whose keys, of the slots, are told to it, and who sees whom.

    Attributes:
        visible: `b t s`.
        limits: gets the window that the layer asks for.
    """

    visible: Any = None
    limits: list[tuple[int | None, int | None]] = field(default_factory=list)

    def window_mask(self, left: int | None, right: int | None) -> Any:
        self.limits.append((left, right))
        return self.visible[:, None] if self.head_axis else self.visible


class Roomy:
    """A config whose cache holds every position."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def cache_slots(self) -> int | None:
        return None if any("s" in axes.split() for axes in self._config.cache_axes().values()) else 1


Touch = Callable[[int, Arrays, Arrays], Arrays]
Maker = Callable[[int], Any]  # the layer that computes a piece, and the attn_np that it is of


@dataclass
class Decoding:
    """A call that is decoded in float64, piece by piece.

    Attributes:
        case, drawn: the call; its one sequence is an input.
        ragged: whether sequences have different lengths.
        plan: the positions of each piece, `b n`; -1 for padding.
    """

    case: Case
    drawn: Drawn
    ragged: bool
    plan: list[np.ndarray] = field(init=False)
    _entries: dict[Any, Arrays] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.case, self.drawn = self.case.at("float64"), wide(self.drawn)
        self.name = given(self.case.config, "plain")[0]
        x = self.drawn.inputs[self.name]
        self.plan = schedule(x.shape[0], x.shape[1], self.ragged)
        at = np.concatenate(self.plan, 1)
        # Padding holds numbers of the sequence's end, as it does for a candidate.
        self.x = x[np.arange(x.shape[0])[:, None], np.where(at < 0, x.shape[1] - 1, at)]
        self.at, self.stops = at, np.cumsum([piece.shape[1] for piece in self.plan])

    @cached_property
    def layer(self) -> Any:
        return numpy_layer(self.case, self.drawn.params)

    @property
    def config(self) -> Config:
        return self.case.config

    @property
    def has_entries(self) -> bool:
        """Whether the cache holds an entry for each position, and no state."""
        axes = self.config.cache_axes().values()
        return bool(axes) and all("s" in letters.split() for letters in axes)

    def pieces(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Number, inputs and positions of each piece."""
        for i, (at, stop) in enumerate(zip(self.plan, self.stops, strict=True)):
            yield i, self.x[:, stop - at.shape[1] : stop], at

    # With entries -----------------------------------------------------------------------------------------------------

    def view(self, number: int) -> View:
        """A piece as it should be."""
        b, c = self.at.shape
        stop, n = int(self.stops[number]), self.plan[number].shape[1]
        spare = max(self.config.cache_slots() or 0, 1)  # columns that nothing is ever written to
        piece = np.concatenate([np.searchsorted(self.stops, np.arange(c), "right"), np.full(spare, len(self.plan))])
        at = np.concatenate([self.at, np.full((b, spare), -1)], 1)
        true_key = np.where(np.arange(c + spare) < stop, at, -1)
        key_at = np.where(
            true_key >= 0, true_key, np.maximum(np.arange(c + spare) - np.argmax(self.at >= 0, 1)[:, None], 0)
        )
        true_query = self.plan[number]
        view = View(
            number, stop - n, stop, piece, np.maximum(true_query, 0), key_at, true_query, true_key,
            np.zeros((b, n, c + spare), bool), self.window,
        )  # fmt: skip
        return replace(view, visible=view.band(view.window))

    @cached_property
    def window(self) -> int | None:
        """How many earlier keys a query sees, as the layer asks a step; None for all."""
        at = np.zeros((self.x.shape[0], 1), int)
        step = self.placed(self.blank(1, 1), at, at, np.ones((self.x.shape[0], 1, 1), bool), np.zeros(1, int))
        self.layer(self.x[:, :1], step=step, tape={})
        return step.limits[0][0] if step.limits else None

    def entries(self, key_at: np.ndarray, padding: bool = False) -> Arrays:
        """What the cache holds for all columns, encoded at these positions; that of padding, too, if it is seen."""
        key = key_at.tobytes(), padding
        if key not in self._entries:
            b, c = key_at.shape
            step = self.placed(
                self.blank(c, int(key_at.max()) + 1), key_at, key_at, np.ones((b, c, c), bool), np.arange(c)
            )
            step = step if padding else replace(step, is_appended=self.at >= 0)
            self.layer(self.x, step=step, tape={})
            self._entries[key] = {name: x[:, :c] for name, x in step.arrays.items()}
        return self._entries[key]

    def blank(self, columns: int, longest: int) -> Cache:
        """An empty cache with a slot for each column."""
        letters = {letter for axes in self.config.cache_axes().values() for letter in axes.split()}
        sizes: dict[str, Any] = dict.fromkeys(letters - {"b", "s", *self.config.sizes()}, self.x.shape[-1])
        like = np.zeros((), np.float64)
        empty = empty_cache(Roomy(self.config), self.x.shape[0], columns, sizes, like, like)
        return replace(empty, limit=max(self.at.shape[1], longest))

    def placed(self, cache: Cache, query_at: Any, key_at: Any, visible: Any, slot: np.ndarray) -> Placed:
        """The step that writes its entries to these slots."""
        b, n = query_at.shape
        mask = self.config.arguments().get("mask")
        positions = np.concatenate([key_at, np.full((b, SPARE), -1)], 1)
        return Placed(
            cache, None, key_at.shape[1], cache.length, np.ones((b, n), bool), np.zeros((b, n), bool),
            np.broadcast_to(slot, (b, n)), positions, query_at, key_at, False,
            mask is not None and "h" in mask.axes.split(), visible=visible,
        )  # fmt: skip

    def attended(self, view: View, touch: Callable[[View, Arrays], Arrays] | None = None) -> np.ndarray:
        """The outputs of a piece."""
        columns, c = self.at.shape[1], len(view.piece)
        padding = view.visible[:, :, :columns] & (self.at < 0)[:, None]
        arrays = self.entries(view.key_at[:, :columns], bool(padding.any()))
        arrays = arrays if touch is None else touch(view, arrays)
        cache = self.blank(c, int(max(view.key_at.max(), view.query_at.max())) + 1)
        held = {name: np.zeros_like(x) for name, x in cache.arrays.items()}
        for name, x in arrays.items():
            held[name][:, : view.stop] = x[:, : view.stop]
            held[name][:, columns : x.shape[1]] = x[:, columns:]
        step = self.placed(replace(cache, arrays=held), view.query_at, view.key_at, view.visible, np.array(c))
        return self.layer(self.x[:, view.start : view.stop], step=step, tape={})

    # With any cache ---------------------------------------------------------------------------------------------------

    def layered(self, maker: Maker | None = None, touch: Touch | None = None) -> Iterator[np.ndarray]:
        """The outputs of each piece, computed by the layer that `maker` gives, or ours.

        `touch` gets the number of a piece and what the cache held before and after it, and gives what it holds.
        """
        make = maker or (lambda _: self.layer)
        cache = self.empty()
        for i, x, at in self.pieces():
            y, after = self.advance(make(i), x, at, cache)
            if touch is not None:
                after = replace(after, arrays=touch(i, cache.arrays, after.arrays))
            cache = after
            yield y

    def empty(self) -> Cache:
        """The cache before the first piece."""
        if passes_state(self.config):
            sizes = self.config.sizes()
            zero = np.zeros(self.x.shape[0], int)
            state = np.zeros((sizes["l"], self.x.shape[0], sizes["e"]))
            return Cache({"state": state}, zero[:, None], zero, zero > 0, self.at.shape[1])
        return self.blank(self.at.shape[1], 0)

    def advance(
        self, layer: Any, x: np.ndarray, at: np.ndarray, cache: Cache, tape: Any = None
    ) -> tuple[np.ndarray, Cache]:
        """The outputs of one piece and the cache after it; the cache before it stays as it is."""
        before = replace(cache, arrays={name: z.copy() for name, z in cache.arrays.items()})
        if passes_state(self.config):
            y, state = layer(x, before.arrays["state"], tape={} if tape is None else tape)
            return y, replace(cache, arrays={"state": state})
        step = begin_step(Roomy(self.config), before, x, at >= 0 if (at < 0).any() else None)
        return end_step(step, layer(x, step=step, tape={} if tape is None else tape))
