"""Decoding: caches of earlier positions, and steps that compute the new ones only."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from attn_np.contract._decode import SPARE, cache_shapes, check_room, check_unspent, slot_count
from attn_torch.attention.masks import broadcast_mask, in_window
from attn_torch.ops import (
    Array,
    allows_data_dependent_shapes,
    arange,
    concatenate,
    concrete,
    cumsum,
    dtype_name,
    empty_slots,
    pytree,
    to_dtype,
    upcast,
    where,
    write_positions,
    write_slice,
    write_slots,
    zeros,
)


@pytree(arrays=["arrays", "positions", "length", "overflowed"], static=["max_length"])
@dataclass(frozen=True)
class Cache:
    """Keys, values or states of earlier positions, for each sequence of a batch.

    A step may write into the arrays and returns the next cache; the old one is used up, in JAX only if it was donated.

    Attributes:
        arrays: by name: entries, one for each slot and a spare one for those not stored; or a state.
        positions: `b s`, the position whose entries a slot, or the spare one, holds; -1 for an empty slot.
        length: `b`, how many positions each sequence has.
        overflowed: `b`, True if a sequence got positions that the cache had no room for.
        max_length: how many positions each sequence may have.
        spent: True once a step outside compiled programs has used the cache up; in NumPy and PyTorch.
    """

    arrays: dict[str, Array]
    positions: Array
    length: Array
    overflowed: Array
    max_length: int
    spent: ClassVar[bool] = False

    def copy(self) -> "Cache":
        """The same cache in arrays of its own, to continue one sequence in several ways.

        Raises:
            ValueError: a step has used it up.
        """
        check_unspent("cache", self.spent)
        arrays = {name: 1 * x for name, x in self.arrays.items()}
        return Cache(arrays, 1 * self.positions, 1 * self.length, self.overflowed | False, self.max_length)


@dataclass(frozen=True)
class DecodeStep:
    """The new positions of a step and those in the cache, as a forward pass needs to know them.

    A step is like the end of a full pass (`like_full_pass`) if all sequences are known to have the same length, every
    new position is real, and there are free slots after the last one. Then its keys are the slots up to the last new
    one, `start` gives all positions, and the arrays from `is_appended` to `key_positions` are None.

    Attributes:
        cache: the cache before the step.
        start: how many positions every sequence has before a step like a full pass; None for other steps.
        max_filled: an upper bound on how many slots hold keys after the step; None if not known.
        length: `b`, how many positions each sequence has after the step.
        is_appended: `b t`, which of the new positions are real and have room; in a ring the last of them get the slots.
        overflowing: `b t`, which are real and have none.
        slot: `b t`, the slots for their entries.
        slot_positions: `b s`, the positions whose entries the slots hold after the step.
        query_positions: `b t`, the positions of the queries.
        key_positions: `b s`, the positions of the keys; -1 for none.
        concatenated: whether the keys are the old slots, then the new keys, not the slots after the step: in a ring of
            slots the last new positions may overwrite keys that the first ones see.
        head_axis: in a step unlike a full pass, whether attention matrices are `b h t s`, not `b t s`.
        gather: where the sequence lies on several devices, what brings the entries of all together; there is no cache.
        ring: there, `attend` over the keys of all devices.
        arrays: those of the cache after the step, filled in by `append` and `write_state`.
    """

    cache: Cache
    start: int | None
    max_filled: int | None
    length: Array
    is_appended: Any = None
    overflowing: Any = None
    slot: Any = None
    slot_positions: Any = None
    query_positions: Any = None
    key_positions: Any = None
    concatenated: bool = False
    head_axis: bool = False
    gather: Any = None
    ring: Any = None
    arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def like_full_pass(self) -> bool:
        """Whether the step is like the end of a full pass, from `start` on."""
        return self.start is not None

    def window_mask(self, left: int | None, right: int | None) -> Array:
        """The keys that each new query sees within a window: `b 1 t s`, or `b t s` without a head axis."""
        allowed = in_window(self.query_positions, self.key_positions, left, right)
        allowed = allowed & (self.key_positions[:, None, :] >= 0) & self.is_appended[:, :, None]
        return allowed[:, None] if self.head_axis else allowed


def empty_cache(
    config: Any, batch_size: int, max_length: int, sizes: dict[str, int], like: Array, state_like: Array
) -> Cache:
    """An empty cache: entries with the dtype of `like`, states with that of `state_like`, cached integer arguments as
    integers; all on `like`'s device.
    """
    shapes, axes = cache_shapes(config, batch_size, max_length, sizes), config.cache_axes()
    zero = 0 * arange(batch_size, like)
    likes = {name: zero if arg.kind == "integers" else like for name, arg in config.arguments().items()}
    arrays = {
        name: empty_slots(shape, likes.get(name, like)) if "s" in axes[name].split() else zeros(shape, state_like)
        for name, shape in shapes.items()
    }
    positions = zero[:, None] - 1 + 0 * arange(slot_count(config, max_length) + SPARE, like)
    return Cache(arrays, positions, zero, zero > 0, max_length)


def begin_step(config: Any, cache: Cache, query: Array, valid: Array | None) -> DecodeStep:
    """The step that appends new positions: their slots, and the positions of queries and keys.

    Raises:
        ValueError: no room in the cache, if the lengths are known.
    """
    b, t, num_slots, max_length = *query.shape[:2], cache.positions.shape[1] - SPARE, cache.max_length
    max_filled = None
    if allows_data_dependent_shapes(cache.length):
        lengths = cache.length.tolist()
        start, longest = min(lengths), max(lengths)
        if valid is None and start == longest and start + t <= num_slots:
            return DecodeStep(cache, start, start + t, cache.length + t)
        max_filled = min(longest + t, num_slots)
    is_real = broadcast_mask(valid, (b, t), query)
    query_positions = cache.length[:, None] + cumsum(is_real, 1) - 1
    length = query_positions[:, -1] + 1
    if concrete(length):
        check_room(config.variant, int(length.max()), max_length)
    length = where(length < max_length, length, max_length)
    is_appended = is_real & (query_positions < max_length)
    stored = is_appended & (query_positions >= length[:, None] - num_slots)
    slot = where(stored, query_positions % num_slots, num_slots)
    slot_positions = write_slots(0 + cache.positions, slot, where(stored, query_positions, -1))
    concatenated = num_slots < max_length and t > 1
    old_positions = cache.positions[:, :max_filled]
    key_positions = (
        concatenate([old_positions, where(is_appended, query_positions, -1)], 1)
        if concatenated
        else slot_positions[:, :max_filled]
    )
    mask = config.arguments().get("mask")
    head_axis = mask is not None and "h" in mask.axes.split()
    return DecodeStep(
        cache, None, max_filled, length, is_appended, is_real & ~is_appended, slot, slot_positions,
        query_positions, key_positions, concatenated, head_axis,
    )  # fmt: skip


def end_step(step: DecodeStep, y: Array) -> tuple[Array, Cache]:
    """The outputs, NaN for positions without room, and the cache after the step."""
    old_cache = step.cache
    if step.start is not None:
        positions = write_positions(old_cache.positions, step.start, step.start + y.shape[1])
        return y, Cache(step.arrays, positions, step.length, old_cache.overflowed, old_cache.max_length)
    overflowed = old_cache.overflowed | (step.overflowing.sum(1) > 0)
    after = Cache(step.arrays, step.slot_positions, step.length, overflowed, old_cache.max_length)
    return to_dtype(where(step.overflowing[:, :, None], float("nan"), upcast(y)), dtype_name(y)), after


def append(step: DecodeStep | None, **new: Array) -> Any:
    """The cached entries that new positions may see, and the new entries: `k, v = append(step, k=k, v=v)`.

    Without a step these are the new ones alone.
    """
    if step is None:
        results = tuple(new.values())
        return results[0] if len(results) == 1 else results
    results = ()
    for name, x in new.items():
        if step.gather is not None:
            step.arrays[name] = x
            results += (step.gather(x),)
            continue
        old = step.cache.arrays[name]
        entry = to_dtype(x, dtype_name(old))
        old_and_new = concatenate([old[:, : step.max_filled], entry], 1) if step.concatenated else None
        slots_after = write_slots(old, step.slot, entry) if step.start is None else write_slice(old, step.start, entry)
        step.arrays[name] = slots_after
        results += (to_dtype(slots_after[:, : step.max_filled] if old_and_new is None else old_and_new, dtype_name(x)),)
    return results[0] if len(results) == 1 else results


def real_mask(mask: Array | None, step: DecodeStep | None = None) -> Array | None:
    """The new positions that are real and, in a step, have room, broadcastable to `b t`; None for all."""
    if step is None or step.like_full_pass:
        return mask
    return step.is_appended if mask is None else step.is_appended & mask


def read_state(step: DecodeStep | None, name: str, initial_state: Array) -> Array:
    """The state in the cache; outside a step the initial one."""
    return initial_state if step is None else to_dtype(step.cache.arrays[name], dtype_name(initial_state))


def write_state(step: DecodeStep | None, **states: Array) -> None:
    """Replace states in the cache; outside a step do nothing."""
    if step is not None:
        # a copy: the last of the states of all new positions, kept as a view, would keep the others in memory
        copies = {name: concatenate([x], 0) for name, x in states.items()}
        step.arrays.update({name: to_dtype(x, dtype_name(step.cache.arrays[name])) for name, x in copies.items()})
