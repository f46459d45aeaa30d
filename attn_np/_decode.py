"""Decoding: what a layer keeps of earlier positions, so that a step computes the new ones only."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from attn_np._ops import (
    Array,
    arange,
    broadcast_to,
    concatenate,
    concrete,
    cumsum,
    dtype_name,
    empty_slots,
    pytree,
    shapes_may_vary,
    to_dtype,
    upcast,
    where,
    write_positions,
    write_slice,
    write_slots,
)
from attn_np.contract._decode import SPARE, cache_shapes, check_room, check_unspent, slots


@pytree(arrays=["arrays", "positions", "length", "overrun"], static=["max_length"])
@dataclass(frozen=True)
class Cache:
    """What a layer keeps of each sequence between steps.

    A step may write into the arrays and returns the next cache; the one it was given is used up.

    Attributes:
        arrays: by name: entries, one for each slot and a spare one for what is not kept; or a state.
        positions: `b s`, the position whose entries a slot holds; -1 for an empty slot.
        length: `b`, how many positions each sequence has.
        overrun: `b`, True if a sequence got positions for which there was no room.
        max_length: how many positions each sequence may have.
        spent: True once a step outside compiled programs has used the cache up; in NumPy and PyTorch.
    """

    arrays: dict[str, Array]
    positions: Array
    length: Array
    overrun: Array
    max_length: int
    spent: ClassVar[bool] = False

    def copy(self) -> "Cache":
        """The same cache in arrays of its own, to continue from one place in several ways.

        Raises:
            ValueError: a step has used it up.
        """
        check_unspent("cache", self.spent)
        arrays = {name: 1 * x for name, x in self.arrays.items()}
        return Cache(arrays, 1 * self.positions, 1 * self.length, self.overrun | False, self.max_length)


@dataclass(frozen=True)
class DecodeStep:
    """The new positions of a step beside those of a cache: what a forward needs to know of them.

    An aligned step is one where all sequences are known to have one length, every new position is real and there is
    room behind the last one: it is the end of a full pass. Its keys are the slots up to the new ones, `start` says all
    about positions, and the arrays are None.

    Attributes:
        cache: the cache before the step.
        start: how many positions every sequence has before an aligned step; else None.
        filled: how many slots hold keys, if it is known; else None.
        length: `b`, how many positions each sequence has after the step.
        real: `b t`, the new positions that are real and have room.
        lost: `b t`, the new positions that are real and have no room.
        slot: `b t`, the slots for their entries.
        positions: `b s`, the positions whose entries the slots hold after the step.
        query_at: `b t`, the positions of the queries.
        key_at: `b s`, the positions of the keys; -1 for none.
        joined: the keys are the slots before the step and then the new keys, not the slots after it: in a ring of
            slots the last of many new positions overwrite keys that the first ones see.
        head_axis: attention matrices are `b h t s`, not `b t s`.
        arrays: those of the cache after the step, filled in by `append` and `write_state`.
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
    head_axis: bool = False
    arrays: dict[str, Array] = field(default_factory=dict)

    def attention_mask(self, left: int | None, right: int | None) -> Array:
        """Which keys each new query sees within a window: `b 1 t s`, or `b t s` without a head axis."""
        ahead = self.key_at[:, None, :] - self.query_at[:, :, None]
        allowed = (self.key_at[:, None, :] >= 0) & self.real[:, :, None]
        allowed = allowed if right is None else allowed & (ahead <= right)
        allowed = allowed if left is None else allowed & (ahead >= -left)
        return allowed[:, None] if self.head_axis else allowed


def empty_cache(
    config: Any, batch_size: int, max_length: int, sizes: dict[str, int], like: Array, state: Array
) -> Cache:
    """An empty cache with the device and dtype of `like` for entries and of `state` for states; tokens are integers."""
    shapes, axes = cache_shapes(config, batch_size, max_length, sizes), config.cached()
    kinds = {name: like if "s" in letters.split() else state for name, letters in axes.items()}
    none = 0 * arange(batch_size, like)
    kinds |= {name: none for name, arg in config.arguments().items() if arg.kind == "tokens"}
    arrays = {name: empty_slots(shape, kinds[name]) for name, shape in shapes.items()}
    positions = none[:, None] - 1 + 0 * arange(slots(config, max_length) + SPARE, like)
    return Cache(arrays, positions, none, none > 0, max_length)


def begin_step(config: Any, cache: Cache, query: Array, valid: Array | None) -> DecodeStep:
    """The step that appends new positions: their slots, and the positions of queries and keys.

    Raises:
        ValueError: no room, if the lengths are known.
    """
    b, t, room, most = query.shape[0], query.shape[1], cache.positions.shape[1] - SPARE, cache.max_length
    filled = None
    if shapes_may_vary(cache.length):
        lengths = cache.length.tolist()
        start, longest = min(lengths), max(lengths)
        if valid is None and start == longest and start + t <= room:
            return DecodeStep(cache, start, start + t, cache.length + t)
        filled = min(longest + t, room)
    new = broadcast_to(arange(t, query)[None, :] >= 0, (b, t)) if valid is None else valid
    query_at = cache.length[:, None] + cumsum(new, 1) - 1
    length = query_at[:, -1] + 1
    if concrete(length):
        check_room(config.variant, int(length.max()), most)
    length = where(length < most, length, most)
    real = new & (query_at < most)
    stays = real & (query_at >= length[:, None] - room)
    slot = where(stays, query_at % room, room)
    positions = write_slots(0 + cache.positions, slot, where(stays, query_at, -1))
    joined = room < most and t > 1
    before = cache.positions[:, :filled]
    key_at = concatenate([before, where(real, query_at, -1)], 1) if joined else positions[:, :filled]
    mask = config.arguments().get("mask")
    head_axis = mask is not None and "h" in mask.axes.split()
    lost = new & ~real
    return DecodeStep(cache, None, filled, length, real, lost, slot, positions, query_at, key_at, joined, head_axis)


def end_step(step: DecodeStep, y: Array) -> tuple[Array, Cache]:
    """The outputs, NaN where there was no room, and the cache after the step."""
    before = step.cache
    if step.start is not None:
        positions = write_positions(before.positions, step.start, step.start + y.shape[1])
        return y, Cache(step.arrays, positions, step.length, before.overrun, before.max_length)
    overrun = before.overrun | (step.lost.sum(1) > 0)
    after = Cache(step.arrays, step.positions, step.length, overrun, before.max_length)
    return to_dtype(where(step.lost[:, :, None], float("nan"), upcast(y)), dtype_name(y)), after


def append(step: DecodeStep | None, **new: Array) -> Any:
    """The entries of all positions in the cache with the new ones appended: `k, v = append(step, k=k, v=v)`.

    Without a step the new ones are all there are.
    """
    if step is None:
        entries = tuple(new.values())
        return entries[0] if len(entries) == 1 else entries
    entries = ()
    for name, x in new.items():
        old = step.cache.arrays[name]
        entry = to_dtype(x, dtype_name(old))
        joined = concatenate([old[:, : step.filled], entry], 1) if step.joined else None
        slotted = write_slots(old, step.slot, entry) if step.start is None else write_slice(old, step.start, entry)
        step.arrays[name] = slotted
        entries += (to_dtype(slotted[:, : step.filled] if joined is None else joined, dtype_name(x)),)
    return entries[0] if len(entries) == 1 else entries


def token_positions(t: int, s: int, *, like: Array, step: DecodeStep | None = None) -> tuple[Array, Array]:
    """The positions of queries and keys, each `1 t` or `b t`: query i is at i + s - t, the last query at the last key.

    In a step the cache says where they are; -1 for a key that is not there.
    """
    if step is not None:
        if step.start is None:
            return step.query_at, step.key_at
        s = step.start + t
    return arange(t, like)[None, :] + (s - t), arange(s, like)[None, :]


def real_positions(mask: Array | None, step: DecodeStep | None = None) -> Array | None:
    """Which new positions are real and, in a step, have room, broadcastable to `b t`; None for all."""
    if step is None or step.real is None:
        return mask
    return step.real if mask is None else step.real & mask


def read_state(step: DecodeStep | None, name: str, fresh: Array) -> Array:
    """The state in the cache; `fresh` outside a step."""
    return fresh if step is None else to_dtype(step.cache.arrays[name], dtype_name(fresh))


def write_state(step: DecodeStep | None, **states: Array) -> None:
    """Replace states in the cache; outside a step there is none."""
    if step is not None:
        step.arrays.update({name: to_dtype(x, dtype_name(step.cache.arrays[name])) for name, x in states.items()})
