"""The short causal convolution before a recurrence: each dimension of a position is mixed with a few before it.

Padding is passed over: the positions before a position are the real ones. They are moved to the front, convolved there,
and moved back.
"""

from typing import Any

import numpy as np

from attn_np.attention.decode import DecodeStep, read_window, write_state
from attn_np.attention.masks import broadcast_mask, zero_unseen
from attn_np.ops import Array, Tape, arange, concatenate, cumsum, record, upcast, where, zeros
from attn_np.ops.pages import real_first, take_positions
from attn_np.ops.vjp import sum_grads


def to_front(x: Array, real: Array | None) -> Array:
    """The real positions before the others, in their order: `b t ...`."""
    return x if real is None else take_positions(x, real_first(broadcast_mask(real, x.shape[:2], x)))


def to_places(x: Array, real: Array | None) -> Array:
    """Back from the front; padding gets the real position before it, or the first."""
    if real is None:
        return x
    last_real = cumsum(broadcast_mask(real, x.shape[:2], x), 1) - 1
    return take_positions(x, where(last_real < 0, 0, last_real))


def documents_of(entries: Array, real: Array | None, continues: Array | None) -> Array | None:
    """The document of each entry, `b (x t) 1 1`, counted from that of the window before, 0; None where there is one."""
    if continues is None:
        return None
    b, t = continues.shape
    documents = cumsum(to_front(continues ^ True, real), 1)
    before = zeros((b, entries.shape[1] - t), documents)
    return concatenate([before, documents], 1)[:, :, None, None]


def of_own_document(x: Array, place: int, documents: Array | None) -> Array:
    """x, `b t h k`, and 0 where the entry at this place of the window belongs to another document than the position."""
    if documents is None:
        return x
    t = x.shape[1]
    size = documents.shape[1] - t
    return where(documents[:, place + 1 : place + 1 + t] == documents[:, size:], x, 0.0)


def last_window(entries: Array, size: int, real: Array | None, documents: Array | None) -> Array:
    """The window of the last real position, `b x h k`; empty are the places of other documents than its own."""
    is_real = broadcast_mask(real, (entries.shape[0], entries.shape[1] - size), entries)
    places = is_real.sum(1)[:, None] + arange(size, entries)
    window, of = take_positions(entries, places), None if documents is None else take_positions(documents, places)
    return window if of is None else where(of == of[:, -1:], window, 0.0)


def convolve(
    name: str,
    x: Array,
    weight: Array,
    real: Array | None,
    continues: Array | None,
    step: DecodeStep | None,
    tape: Tape,
) -> Array:
    """y_t = sum_j w_j x_{t - size + 1 + j}, for each dimension, over real positions of the same document: `b t h k`.

    `weight`, `x h k`, is for the windows of so many positions; the last is that of the position itself. The window
    before the first position is read from the cache, or 0, and the last one is cached. At padding y plays no part.
    """
    size = weight.shape[0]
    before = read_window(step, f"{name}_conv", x, size, continues)
    entries = record(tape, **{f"{name}_entries": concatenate([before, to_front(x, real)], 1)})
    documents = documents_of(entries, real, continues)
    y: Any = 0.0
    for place in range(size):
        shifted = entries[:, place + 1 : place + 1 + x.shape[1]]
        y = y + upcast(weight)[place] * of_own_document(shifted, place, documents)
    if step is not None and step.recur is None:
        write_state(step, **{f"{name}_conv": last_window(entries, size, real, documents)})
    return to_places(y, real)


def convolve_vjp(
    name: str, tape: Tape, weight: Array, real: Array | None, continues: Array | None, dy: Array
) -> tuple[Array, Array]:
    """The gradients of x and of the weights: a position is in its own window and in those of a few after it."""
    entries, size = tape[f"{name}_entries"], weight.shape[0]
    dy = to_front(zero_unseen("bt->bthk", real, dy), real)
    documents, dx, dweight = documents_of(entries, real, continues), [], []
    for place in range(size):
        shifted = entries[:, place + 1 : place + 1 + dy.shape[1]]
        dweight.append(np.sum(of_own_document(shifted, place, documents) * dy, axis=(0, 1)))
        dshifted = of_own_document(upcast(weight)[place] * dy, place, documents)
        later = size - 1 - place  # so many positions after the entry is the one whose window it is in
        dx.append(concatenate([dshifted[:, later:], zeros(dshifted[:, :later].shape, dshifted)], 1))
    dx = zero_unseen("bt->bthk", real, to_places(sum_grads(*dx), real))
    return dx, concatenate([dw[None] for dw in dweight], 0)
