"""Decoding: caches of earlier positions, and steps that compute the new ones only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from attn_jax.attention.masks import broadcast_mask, in_window
from attn_jax.ops import (
    Array,
    Tape,
    allows_data_dependent_shapes,
    any_over,
    arange,
    concatenate,
    concrete,
    constants,
    cumsum,
    dtype_name,
    empty_slots,
    known_range,
    note_lengths,
    pytree,
    read_lengths,
    reverse_cumsum,
    signed,
    take_rows,
    to_dtype,
    upcast,
    use_up,
    where,
    write_positions,
    write_slice,
    write_slots,
    zeros,
)
from attn_jax.ops.pages import latest, take_positions
from attn_jax.ops.specs import spec_of
from attn_np.contract._decode import (
    SPARE,
    cache_shapes,
    check_at_least_0,
    check_crop,
    check_has_read,
    check_lengths,
    check_no_pattern,
    check_reads_one,
    check_room,
    check_rows,
    check_rows_fit,
    check_some_rows,
    check_unspent,
    reads_cache,
    slot_count,
)

# A recurrence as it is computed, (values, first state, tape) -> (outputs, last state): linear in values and state.
Form = Callable[[Array, Array, Tape], tuple[Array, Array]]


@pytree(arrays=["arrays", "positions", "length", "overflowed"], static=["limit", "states"])
@dataclass(frozen=True)
class Cache:
    """Keys, values or states of earlier positions, for each sequence of a batch.

    A step may write into the arrays and returns the next cache; the old one is used up, in JAX only if it was donated.

    Attributes:
        arrays: by name: entries, one for each slot and a spare one for those not stored; or a state.
        positions: `b s`, the position whose entries a slot, or the spare one, holds; -1 for an empty slot.
        length: `b`, how many positions each sequence has.
        overflowed: `b`, True if a sequence got positions that the cache had no room for, which it lacks.
        limit: how many positions each sequence may have; None: as many as there are slots.
        states: the names of the arrays that are states, with a space between them.
        spent: True once a step outside compiled programs has used the cache up; in NumPy and PyTorch.
    """

    arrays: dict[str, Array]
    positions: Array
    length: Array
    overflowed: Array
    limit: int | None = None
    states: str = ""
    spent: ClassVar[bool] = False

    @property
    def max_length(self) -> int:
        """How many positions each sequence may have."""
        return self.positions.shape[-1] - SPARE if self.limit is None else self.limit

    def copy(self) -> "Cache":
        """The same cache in arrays of its own, to continue one sequence in several ways.

        Raises:
            ValueError: a step has used it up.
        """
        check_unspent("cache", self.spent)
        arrays = {name: 1 * x for name, x in self.arrays.items()}
        positions, length, overflowed = 1 * self.positions, 1 * self.length, self.overflowed | False
        return replace(self, arrays=arrays, positions=positions, length=length, overflowed=overflowed)

    def reset(self, rows: Sequence[int] | Array) -> "Cache":
        """The cache with some sequences empty, for others to begin in their rows. It uses this cache up, as steps do.

        Args:
            rows: `n`, the indices of the sequences.

        Raises:
            ValueError: a step has used it up, or an index that no sequence has, if it is known.
            TypeError: no integers.
        """
        index = self._checked_rows(rows)
        emptied = any_over(arange(self.length.shape[0], self.length)[:, None] == index[None, :], (1,))
        states = {name: where(along_rows(emptied, self.arrays[name]), 0, self.arrays[name]) for name in self._states()}
        after = replace(
            self,
            arrays=self.arrays | {name: to_dtype(x, dtype_name(self.arrays[name])) for name, x in states.items()},
            positions=where(emptied[:, None], -1, self.positions),
            length=where(emptied, 0, self.length),
            overflowed=self.overflowed & ~emptied,
        )
        use_up(self)
        return after

    def select(self, rows: Sequence[int] | Array) -> "Cache":
        """A cache of some sequences, each as often as it is named, in arrays of its own: the beams that go on.

        Args:
            rows: `n`, the indices of the sequences.

        Raises:
            ValueError: a step has used it up, no index, or one that no sequence has, if it is known.
            TypeError: no integers.
        """
        index = self._checked_rows(rows)
        check_some_rows(index.shape[0])
        return replace(
            self,
            arrays={name: take_rows(x, index) for name, x in self.arrays.items()},
            positions=take_rows(self.positions, index),
            length=take_rows(self.length, index),
            overflowed=take_rows(self.overflowed, index),
        )

    def crop(self, length: int | Array) -> "Cache":
        """The cache without the positions from `length` on, such as guesses that were wrong. It uses this cache up, as
        a step does. A sequence that got positions without room, and keeps none of them, is whole again.

        Args:
            length: how many positions each sequence keeps at most, a number or `b`.

        Raises:
            ValueError: a step has used it up; it holds states, or the last positions alone, as within a window: what
                was before is gone; a number below 0, if it is known.
            TypeError: no integers.
        """
        num_slots = self.positions.shape[1] - SPARE
        check_crop(self.spent, self.states, num_slots, self.max_length)
        is_array = not isinstance(length, int | float | str | list | tuple)
        check_lengths(spec_of("cache", "length", length) if is_array else None, length, self.length.shape[0])
        kept = signed(length) if is_array else constants([length], self.length)
        check_at_least_0(known_range(kept))
        lacks_some = self.length < kept
        kept = where(lacks_some, self.length, to_dtype(kept, dtype_name(self.length)))
        positions = where(self.positions < kept[:, None], self.positions, -1)
        after = replace(self, positions=positions, length=kept, overflowed=self.overflowed & lacks_some)
        use_up(self)
        return after

    def _states(self) -> list[str]:
        return self.states.split()

    def _checked_rows(self, rows: Any) -> Array:
        """Rows as an array of integers that fit."""
        check_unspent("cache", self.spent)
        is_array = not isinstance(rows, list | tuple)
        check_rows(spec_of("cache", "rows", rows) if is_array else None, rows)
        index = signed(rows) if is_array else constants(rows, self.length)
        check_rows_fit(known_range(index), self.length.shape[0])
        return index


def along_rows(x: Array, like: Array) -> Array:
    """An array `b` with as many axes as `like`, `b ...`."""
    return x.reshape((x.shape[0],) + (1,) * (len(like.shape) - 1))


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
        lengths: the same as `length`, where it is known without reading the array back from its device.
        sizes: the size of every axis letter of the layer's call, which `Layer.step` has checked; None elsewhere.
        gather: where the sequence lies on several devices, what brings the entries of all together; there is no cache.
        ring: there, `attend` over the keys of all devices.
        recur: there, what passes the state of a recurrence on from device to device: (form, values, first state).
        before: there, the last entries before this device's positions: (entries, how many).
        pattern: there, who may attend to whom besides, with this device's arrays; the ring alone knows it.
        reads: whether another layer's step has written these positions into the cache, which stays as it is.
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
    lengths: list[int] | None = None
    sizes: dict[str, int] | None = None
    gather: Any = None
    ring: Any = None
    recur: Any = None
    before: Any = None
    pattern: Any = None
    reads: bool = False
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
        name: empty_slots(shape, likes.get(name, like))
        if "s" in axes[name].split()
        else zeros(shape, likes.get(name, state_like))
        for name, shape in shapes.items()
    }
    num_slots = slot_count(config, max_length)
    positions = zero[:, None] - 1 + 0 * arange(num_slots + SPARE, like)
    # Where each position has a slot of its own, the shape says how many there are, and a program may serve any number.
    limit = None if num_slots == max_length else max_length
    states = " ".join(name for name in shapes if "s" not in axes[name].split())
    return note_lengths(Cache(arrays, positions, zero, zero > 0, limit, states), 0)


def begin_step(
    config: Any, cache: Cache, query: Array, valid: Array | None, sizes: dict[str, int] | None = None
) -> DecodeStep:
    """The step that appends new positions: their slots, and the positions of queries and keys.

    Raises:
        ValueError: no room in the cache, if the lengths are known.
    """
    if reads_cache(config):
        return begin_reading(config, cache, query, valid, sizes)
    b, t, num_slots = *query.shape[:2], cache.positions.shape[1] - SPARE
    max_filled = None
    lengths_after = None
    if allows_data_dependent_shapes(cache.length):
        lengths = read_lengths(cache)
        start, longest = min(lengths), max(lengths)
        lengths_after = None if valid is not None else [n + t for n in lengths]
        if valid is None and start == longest and start + t <= num_slots:
            return DecodeStep(cache, start, start + t, cache.length + t, lengths=lengths_after, sizes=sizes)
        max_filled = min(longest + t, num_slots)
    is_real, max_length = broadcast_mask(valid, (b, t), query), cache.max_length
    query_positions = cache.length[:, None] + cumsum(is_real, 1) - 1
    length = query_positions[:, -1] + 1
    if concrete(length):
        longest_after = int(length.max()) if lengths_after is None else max(lengths_after)
        check_room(config.variant, longest_after, max_length)
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
    return DecodeStep(
        cache, None, max_filled, length, is_appended, is_real & ~is_appended, slot, slot_positions,
        query_positions, key_positions, concatenated, has_head_axis(config), lengths_after, sizes,
    )  # fmt: skip


def has_head_axis(config: Any) -> bool:
    """Whether attention matrices are `b h t s`, not `b t s`."""
    mask = config.arguments().get("mask")
    return mask is not None and "h" in mask.axes.split()


def begin_reading(
    config: Any, cache: Cache, query: Array, valid: Array | None, sizes: dict[str, int] | None
) -> DecodeStep:
    """The step of a layer that reads what another layer's step of the same positions wrote into its cache.

    Raises:
        ValueError: fewer positions in the cache, if that is known; several new ones where the last of them may have
            overwritten keys that the first see.
    """
    b, t, num_slots = *query.shape[:2], cache.positions.shape[1] - SPARE
    max_filled = None
    if allows_data_dependent_shapes(cache.length):
        lengths = read_lengths(cache)
        shortest, longest = min(lengths), max(lengths)
        check_has_read(config.variant, t if valid is None else 0, shortest)
        max_filled = min(longest, num_slots)
        if valid is None and shortest == longest <= num_slots:
            return DecodeStep(cache, longest - t, longest, cache.length, sizes=sizes, reads=True)
    check_reads_one(config.variant, t, num_slots, cache.max_length)
    is_real = broadcast_mask(valid, (b, t), query)
    before = cache.length - is_real.sum(1) - 1
    query_positions = before[:, None] + cumsum(is_real, 1)
    return DecodeStep(
        cache, None, max_filled, cache.length, is_real, query_positions=query_positions,
        key_positions=cache.positions[:, :max_filled], head_axis=has_head_axis(config), sizes=sizes, reads=True,
    )  # fmt: skip


def end_step(step: DecodeStep, y: Array) -> tuple[Array, Cache]:
    """The outputs, NaN for positions without room, and the cache after the step."""
    old_cache = step.cache
    if step.reads:
        return y, old_cache
    arrays = {name: step.arrays[name] for name in old_cache.arrays}  # in this order: exported programs know it
    if step.start is not None:
        positions = write_positions(old_cache.positions, step.start, step.start + y.shape[1])
        after = replace(old_cache, arrays=arrays, positions=positions, length=step.length)
        return y, note_lengths(after, step.lengths)
    overflowed = old_cache.overflowed | (step.overflowing.sum(1) > 0)
    after = replace(old_cache, arrays=arrays, positions=step.slot_positions, length=step.length, overflowed=overflowed)
    after = note_lengths(after, step.lengths)
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
            check_no_pattern(step.pattern)
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


def read_cached(step: DecodeStep, like: Array, *names: str) -> Any:
    """The entries of the cache under these names that new positions may see, in the compute dtype of `like`."""
    step.arrays.update({name: step.cache.arrays[name] for name in names})
    dtype = dtype_name(upcast(like))
    return tuple(to_dtype(step.arrays[name][:, : step.max_filled], dtype) for name in names)


def real_mask(mask: Array | None, step: DecodeStep | None = None) -> Array | None:
    """The new positions that are real and, in a step, have room, broadcastable to `b t`; None for all."""
    if step is None or step.like_full_pass:
        return mask
    return step.is_appended if mask is None else step.is_appended & mask


def read_state(step: DecodeStep | None, name: str, initial_state: Array) -> Array:
    """The state in the cache; without a cache the initial one."""
    if step is None or step.recur is not None:
        return initial_state
    return to_dtype(step.cache.arrays[name], dtype_name(initial_state))


def write_state(step: DecodeStep | None, **states: Array) -> None:
    """Replace states in the cache; without a cache do nothing."""
    if step is not None and step.recur is None:
        # a copy: the last of the states of all new positions, kept as a view, would keep the others in memory
        copies = {name: concatenate([x], 0) for name, x in states.items()}
        step.arrays.update({name: to_dtype(x, dtype_name(step.cache.arrays[name])) for name, x in copies.items()})


def run_form(step: DecodeStep | None, form: Form, v: Array, initial_state: Array, tape: Tape) -> tuple[Array, Array]:
    """The outputs and the last state of a form of a recurrence.

    Where the sequence lies on several devices, the state is passed on between them, and the tape gets nothing of it.
    """
    if step is None or step.recur is None:
        return form(v, initial_state, tape)
    return step.recur(lambda v, state: form(v, state, None), v, initial_state)


def read_window(step: DecodeStep | None, name: str, x: Array, size: int, continues: Array | None) -> Array:
    """The last entries before the first position of x, `b x ...`: from the cache or from other devices; else 0.

    Entries from other devices are 0 where a document begins behind them, by `continues` of `continued_documents`.
    """
    if step is None or step.before is None:
        return read_state(step, name, zeros((x.shape[0], size, *x.shape[2:]), x))
    window = step.before(x, size)
    if continues is None:
        return window
    begins = step.before(where(continues, zeros(continues.shape, x), 1.0), size)
    is_last_document = reverse_cumsum(begins) - begins < 0.5
    return where(is_last_document.reshape(*window.shape[:2], *(1 for _ in window.shape[2:])), window, 0.0)


def numbers_held(numbers: Array, last: Array, real: Array) -> Array:
    """The number of the last real position up to each one, `b t`; before there is any, `last`."""
    places = where(broadcast_mask(real, numbers.shape, numbers), arange(numbers.shape[1], numbers) + 1, 0)
    with_last = concatenate([last[:, None], numbers], 1)
    return take_positions(with_last, latest(places))


def continued_documents(step: DecodeStep | None, documents: Array | None, real: Array | None) -> Array | None:
    """The positions that go on with the document of the real position before them, `b t`; None where all do.

    Padding goes on, and its numbers play no part. Without a cache the first position is as if one of its document stood
    before it; in an empty cache the document is 0, and without `documents` a step goes on with the last one.
    """
    before = None if step is None else step.before
    cache = None if step is None or before is not None else step.cache
    if documents is None:
        if cache is not None:
            write_state(step, documents=cache.arrays["documents"])
        return None
    numbers: Any = signed(documents)
    if cache is not None:
        last = cache.arrays["documents"]
        numbers = to_dtype(numbers, dtype_name(last))
    else:
        last = numbers[:, 0] if before is None else before(numbers, 1)[:, 0]
    seen = concatenate([last[:, None], numbers if real is None else numbers_held(numbers, last, real)], 1)
    continues, last = numbers == seen[:, :-1], seen[:, -1]
    if real is not None:
        continues = continues | (broadcast_mask(real, numbers.shape, numbers) ^ True)
    if cache is not None:
        write_state(step, documents=last)
    return continues
