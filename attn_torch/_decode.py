"""Decoding: what a layer keeps of the positions before, so that a step computes the new ones only."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from attn_np.contract._decode import SPARE, cache_shapes, check_room, check_unspent, slots
from attn_torch._ops import (
    Array,
    arange,
    broadcast_to,
    concatenate,
    concrete,
    cumsum,
    dtype_name,
    known,
    narrow,
    number,
    put,
    rooms,
    where,
    widen,
    write,
)


@dataclass(frozen=True)
class Cache:
    """What a layer keeps of each sequence between steps.

    A step may write into the arrays and returns the cache that stands for what is kept then; the one that went in is
    used up.

    Attributes:
        arrays: by name: one entry for each slot, of which the last takes what is not kept; or one state.
        positions: `b s`, whose entries a slot holds; -1 for none.
        length: `b`, how many positions each sequence has.
        overrun: `b`, True where a sequence got positions that there was no room for.
        max_length: room of each sequence.
        spent: a step outside compiled programs has used it up; NumPy's and PyTorch's say so.
    """

    arrays: dict[str, Array]
    positions: Array
    length: Array
    overrun: Array
    max_length: int
    spent: ClassVar[bool] = False

    def copy(self) -> "Cache":
        """The same in arrays of its own, to go on from one place in several ways.

        Raises:
            ValueError: a step has used it up.
        """
        check_unspent("cache", self.spent)
        arrays = {name: 1 * x for name, x in self.arrays.items()}
        return Cache(arrays, 1 * self.positions, 1 * self.length, self.overrun | False, self.max_length)


@dataclass(frozen=True)
class Past:
    """The new positions of a step beside those of a cache: what a forward needs to know of them.

    Where it is known that all sequences are of one length, that every new position counts and that there is room in
    front of the first, the step is the end of a full pass: its keys are the slots up to the new ones, and nothing but
    `start` says where they stand. Arrays are None then.

    Attributes:
        cache: as it was before.
        start: how many positions every sequence has before, in a step that is the end of a full pass; else None.
        filled: how many slots hold keys, where it is known; else None.
        length: `b`, how many positions each sequence has after.
        real: `b t`, the new positions that count and have room.
        lost: `b t`, those that count and have none.
        slot: `b t`, where their entries go.
        positions: `b s`, whose entries the slots hold after.
        query_at: `b t`, where the new positions stand in their sequences.
        key_at: `b s`, where the keys stand; -1 for none.
        joined: the keys are the slots as they were and then the new ones, instead of the slots as they are after: in a
            ring of slots the last of many new positions take the places of keys that the first ones see.
        headed: attention matrices are `b h t s`, not `b t s`.
        kept: the arrays of the cache after, filled in by `remember`.
    """

    cache: Cache
    start: int | None
    filled: int | None
    length: Array
    real: Any = None
    lost: Any = None
    slot: Any = None
    positions: Any = None
    query_at: Any = None
    key_at: Any = None
    joined: bool = False
    headed: bool = False
    kept: dict[str, Array] = field(default_factory=dict)

    def visible(self, left: int | None, right: int | None) -> Array:
        """Which keys each new query sees within a window: `b 1 t s`, or `b t s` without a head axis."""
        ahead = self.key_at[:, None, :] - self.query_at[:, :, None]
        near = (self.key_at[:, None, :] >= 0) & self.real[:, :, None]
        near = near if right is None else near & (ahead <= right)
        near = near if left is None else near & (ahead >= -left)
        return near[:, None] if self.headed else near


def empty_cache(
    config: Any, batch_size: int, max_length: int, sizes: dict[str, int], like: Array, state: Array
) -> Cache:
    """A cache that holds nothing yet, on the device of two arrays and of their dtypes: `like` for entries of positions,
    `state` for states. Tokens are kept as integers.
    """
    shapes, entries = cache_shapes(config, batch_size, max_length, sizes), config.cached()
    kinds = {name: like if "s" in axes.split() else state for name, axes in entries.items()}
    none = 0 * arange(batch_size, like)
    kinds |= {name: none for name, arg in config.arguments().items() if arg.kind == "tokens"}
    arrays = {name: rooms(shape, kinds[name]) for name, shape in shapes.items()}
    positions = none[:, None] - 1 + 0 * arange(slots(config, max_length) + SPARE, like)
    return Cache(arrays, positions, none, none > 0, max_length)


def opened(config: Any, cache: Cache, query: Array, valid: Array | None) -> Past:
    """Find places for the new positions.

    Raises:
        ValueError: no room, where the lengths are known.
    """
    b, t, room, most = query.shape[0], query.shape[1], cache.positions.shape[1] - SPARE, cache.max_length
    filled = None
    if known(cache.length):
        lengths = cache.length.tolist()
        start, longest = min(lengths), max(lengths)
        if valid is None and start == longest and start + t <= room:
            return Past(cache, start, start + t, cache.length + t)
        filled = min(longest + t, room)
    counted = broadcast_to(arange(t, query)[None, :] >= 0, (b, t)) if valid is None else valid
    query_at = cache.length[:, None] + cumsum(counted, 1) - 1
    length = query_at[:, -1] + 1
    if concrete(length):
        check_room(config.variant, int(length.max()), most)
    length = where(length < most, length, most)
    real = counted & (query_at < most)
    stays = real & (query_at >= length[:, None] - room)
    slot = where(stays, query_at % room, room)
    positions = write(0 + cache.positions, slot, where(stays, query_at, -1))
    joined = room < most and t > 1
    before = cache.positions[:, :filled]
    key_at = concatenate([before, where(real, query_at, -1)], 1) if joined else positions[:, :filled]
    mask = config.arguments().get("mask")
    headed = mask is not None and "h" in mask.axes.split()
    lost = counted & ~real
    return Past(cache, None, filled, length, real, lost, slot, positions, query_at, key_at, joined, headed)


def closed(past: Past, y: Array) -> tuple[Array, Cache]:
    """The outputs, NaN where there was no room, and the cache as it is after."""
    if past.start is not None:
        positions = number(past.cache.positions, past.start, past.start + y.shape[1])
        return y, Cache(past.kept, positions, past.length, past.cache.overrun, past.cache.max_length)
    overrun = past.cache.overrun | (past.lost.sum(1) > 0)
    after = Cache(past.kept, past.positions, past.length, overrun, past.cache.max_length)
    return narrow(where(past.lost[:, :, None], float("nan"), widen(y)), dtype_name(y)), after


def remember(past: Past | None, **new: Array) -> Any:
    """Keep what new positions have: `k, v = remember(past, k=k, v=v)` gives the entries of all that are in the cache.

    Without a past the new ones are all there are.
    """
    if past is None:
        found = tuple(new.values())
        return found[0] if len(found) == 1 else found
    found = ()
    for name, x in new.items():
        old = past.cache.arrays[name]
        entry = narrow(x, dtype_name(old))
        joined = concatenate([old[:, : past.filled], entry], 1) if past.joined else None
        kept = past.kept[name] = write(old, past.slot, entry) if past.start is None else put(old, past.start, entry)
        found += (narrow(kept[:, : past.filled] if joined is None else joined, dtype_name(x)),)
    return found[0] if len(found) == 1 else found


def places(t: int, s: int, *, like: Array, past: Past | None = None) -> tuple[Array, Array]:
    """Where queries and keys stand, each `1 t` or `b t`: query i at i + s - t, the last query at the last key.

    In a step where the cache says; -1 for a key that is not there.
    """
    if past is not None:
        if past.start is None:
            return past.query_at, past.key_at
        s = past.start + t
    return arange(t, like)[None, :] + (s - t), arange(s, like)[None, :]


def counted(mask: Array | None, past: Past | None = None) -> Array | None:
    """Which new positions count, broadcastable to `b t`: those of a padding mask, in a step those that have room too.

    None where all do.
    """
    if past is None or past.real is None:
        return mask
    return past.real if mask is None else past.real & mask


def recall(past: Past | None, name: str, fresh: Array) -> Array:
    """The state that a cache holds, `fresh` where there is no past."""
    return fresh if past is None else narrow(past.cache.arrays[name], dtype_name(fresh))


def retain(past: Past | None, **states: Array) -> None:
    """Put states in the place of those that a cache holds."""
    if past is not None:
        past.kept.update({name: narrow(x, dtype_name(past.cache.arrays[name])) for name, x in states.items()})
