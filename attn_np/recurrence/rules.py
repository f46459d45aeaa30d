"""Linear recurrences, position by position or in chunks: a state that decays, is erased along a key, and is written."""

from math import prod
from typing import Any

import numpy as np

from attn_np.ops import (
    Array,
    Tape,
    arange,
    concatenate,
    einsum,
    group_heads,
    is_longer,
    lengths_are_numbers,
    record,
    remat,
    scan,
    stack,
    where,
    zeros,
)
from attn_np.ops.vjp import einsum_vjp, sum_grads, sum_to

# Entries of k in the chunks that are halved at once in NumPy's or PyTorch's backward pass. It limits memory, since
# every level of halving makes new arrays.
VJP_KEY_ENTRIES = 2**17

# Chunks ---------------------------------------------------------------------------------------------------------------


def to_chunks(x: Array, chunk_size: int, fill: float = 0.0) -> Array:
    """Chunks as batch rows, the last one padded."""
    b, t, *rest = x.shape
    n = -(-t // chunk_size)
    if not lengths_are_numbers() or n * chunk_size != t:  # to join nothing would be a copy
        x = concatenate([x, fill + zeros((b, n * chunk_size - t, *rest), x)], 1)
    # b (n c) ... -> (b n) c ..., in two steps, each of which JAX can follow on a mesh with explicit axes
    return x.reshape(b, n, chunk_size, *rest).reshape(b * n, chunk_size, *rest)


def from_chunks(x: Array, b: int, t: int) -> Array:
    """The inverse of `to_chunks`: chunks in a row, without the padding."""
    _, chunk_size, *rest = x.shape
    n = -(-t // chunk_size)
    # (b n) c ... -> b (n c) ...
    return x.reshape(b, n, chunk_size, *rest).reshape(b, n * chunk_size, *rest)[:, :t]


def causal_mask(t: int, like: Array) -> Array:
    """The causal mask, `t s`: a query sees itself and earlier keys."""
    return arange(t, like)[:, None] >= arange(t, like)[None, :]


def earlier_mask(t: int, like: Array) -> Array:
    """The mask below the diagonal, `t s`: a position sees earlier keys, not its own."""
    return arange(t, like)[:, None] > arange(t, like)[None, :]


def chunk_size_for(form: str, chunk_size: int, t: int) -> int | None:
    """How many of t positions a chunk has in a form; None for "recurrent", from position to position.

    "auto" is "recurrent" for one position, "chunked" for more than `chunk_size`, and else "parallel", one chunk; a
    `torch.export` program for any length is "parallel", too.
    """
    if form == "recurrent" or (form == "auto" and t == 1):
        return None
    return chunk_size if form == "chunked" or (form == "auto" and is_longer(t, chunk_size)) else max(t, 1)


# Within a chunk -------------------------------------------------------------------------------------------------------


def padded_by_one(x: Array, axes: tuple[int, ...], fill: float = 0.0) -> Array:
    """The array with one more entry at the end of some axes."""
    for axis in axes:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        x = concatenate([x, fill + zeros(shape, x)], axis)
    return x


def halves(x: Array) -> Array:
    """Both halves of axis 1, as rows of one batch."""
    # The two halves of a chunk are neighbours in the batch, so that a sharded batch stays sharded.
    b, t, *rest = x.shape
    return x.reshape(b, 2, t // 2, *rest).reshape(2 * b, t // 2, *rest)  # in two steps, as in `to_chunks`


def from_halves(x: Array) -> Array:
    """The inverse of `halves`."""
    b, half, *rest = x.shape
    return x.reshape(b // 2, 2 * half, *rest)


def interleave(first: Array, second: Array) -> Array:
    """Two arrays as rows of one batch, in the order of `halves`."""
    b, *rest = first.shape
    return stack([first, second], 1).reshape(2 * b, *rest)


def separate(x: Array) -> tuple[Array, Array]:
    """The inverse of `interleave`."""
    b, *rest = x.shape
    pairs = x.reshape(b // 2, 2, *rest)
    return pairs[:, 0], pairs[:, 1]


def unit_lower_inverse(lower: Array) -> Array:
    """(I + A)^-1 for A, `b t h s`, below the diagonal of t and s.

    By halves: [[P, 0], [B, Q]]^-1 = [[P^-1, 0], [-Q^-1 B P^-1, Q^-1]].
    """
    t = lower.shape[1]
    if t == 1:
        return 1.0 + zeros(lower.shape, lower)
    if t % 2:
        return unit_lower_inverse(padded_by_one(lower, (1, 3)))[:, :t, :, :t]
    half = t // 2
    # Both halves are inverted together, as rows of one batch.
    first, second = separate(unit_lower_inverse(interleave(lower[:, :half, :, :half], lower[:, half:, :, half:])))
    corner = einsum("bths,bshj->bthj", second, einsum("bths,bshj->bthj", lower[:, half:, :, :half], first))
    above, below = concatenate([first, zeros(first.shape, first)], 3), concatenate([-corner, second], 3)
    return concatenate([above, below], 1)


def unit_lower_inverse_vjp(inverse: Array, dinverse: Array) -> Array:
    """The gradient of A: a step dA changes the inverse T by -T dA T."""
    return -einsum("biht,bihs->bths", inverse, einsum("bihj,bshj->bihs", dinverse, inverse))


def range_products(decay: Array) -> tuple[Array, Array]:
    """Two products of decays for each position of a chunk: of those up to its own, and of those after it.

    By halves, so that nothing is divided: a product may be 0.
    """
    t = decay.shape[1]
    if t == 1:
        return decay, 1.0 + zeros(decay.shape, decay)
    if t % 2:
        from_start, to_end = range_products(padded_by_one(decay, (1,), 1.0))
        return from_start[:, :t], to_end[:, :t]
    return merge_halves(*range_products(halves(decay)))


def merge_halves(from_start: Array, to_end: Array) -> tuple[Array, Array]:
    """A chunk's products of decays up to each position and after it, from those of both halves."""
    (from_start, from_middle), (to_middle, to_end) = separate(from_start), separate(to_end)
    first_decay, second_decay = from_start[:, -1:], from_middle[:, -1:]
    return concatenate([from_start, from_middle * first_decay], 1), concatenate([to_middle * second_decay, to_end], 1)


def products_by_halves(rows: Array, k: Array, decay: Array) -> tuple[Array, Array, Array]:
    """Products of rows with the keys up to their position, decayed in between, and both products of decays.

    The products are `b t g r s`: a position has r rows, its queries and, by a delta rule, beta k. A row of the later
    half decays from the middle, a key of the earlier half to the middle, and the product of both is one matrix product.
    Neither factor divides, so neither overflows, and where one is 0 the decay is 0, too. Of the products of decays see
    `merge_halves`.
    """
    t = k.shape[1]
    if t == 1:
        return einsum("btgrk,bsgk->btgrs", rows, k), decay, 1.0 + zeros(decay.shape, decay)
    if t % 2:
        even = padded_by_one(rows, (1,)), padded_by_one(k, (1,)), padded_by_one(decay, (1,), 1.0)
        products, from_start, to_end = products_by_halves(*even)
        return products[:, :t, ..., :t], from_start[:, :t], to_end[:, :t]
    products, from_start, to_end = products_by_halves(halves(rows), halves(k), halves(decay))
    (first, second), from_middle, to_middle = separate(products), separate(from_start)[1], separate(to_end)[0]
    corner = einsum("btgrk,bsgk->btgrs", rows[:, t // 2 :] * from_middle[:, :, :, None], k[:, : t // 2] * to_middle)
    above, below = concatenate([first, zeros(corner.shape, k)], 4), concatenate([corner, second], 4)
    return concatenate([above, below], 1), *merge_halves(from_start, to_end)


def decayed_products(rows: Array, k: Array, decay: Array) -> tuple[Array, Array, Array]:
    """As `products_by_halves`; where all channels decay alike, one product without decay times one decay per pair."""
    if decay.shape[3] == k.shape[3]:
        chunks_at_once = max(1, VJP_KEY_ENTRIES // max(1, prod(k.shape[1:])))
        return remat(products_by_halves, chunks_at_once)(rows, k, decay)
    one = 1.0 + zeros(decay.shape, decay)
    decay_matrix, from_start, to_end = products_by_halves(one[:, :, :, None], one, decay)
    return einsum("btgrk,bsgk->btgrs", rows, k) * decay_matrix, from_start, to_end


def products_by_halves_vjp(
    rows: Array, k: Array, decay: Array, dproducts: Array, dfrom_start: Array, dto_end: Array
) -> tuple[Array, Array, Array]:
    """The gradients of rows, keys and decays: `products_by_halves` in reverse."""
    t = k.shape[1]
    if t == 1:
        return *einsum_vjp("btgrk,bsgk->btgrs", rows, k, dproducts), dfrom_start
    if t % 2:
        dproducts = padded_by_one(dproducts, (1, 4))
        rows, k, dfrom_start, dto_end = (padded_by_one(x, (1,)) for x in (rows, k, dfrom_start, dto_end))
        grads = products_by_halves_vjp(rows, k, padded_by_one(decay, (1,), 1.0), dproducts, dfrom_start, dto_end)
        return grads[0][:, :t], grads[1][:, :t], grads[2][:, :t]
    half = t // 2
    (from_start, from_middle), (to_middle, _) = (separate(x) for x in range_products(halves(decay)))
    later_rows, earlier_keys = rows[:, half:], k[:, :half]
    dlater, dearlier = einsum_vjp(
        "btgrk,bsgk->btgrs",
        later_rows * from_middle[:, :, :, None],
        earlier_keys * to_middle,
        dproducts[:, half:, ..., :half],
    )
    shape = from_middle.shape
    dfrom_middle = sum_to(np.sum(dlater * later_rows, axis=3), shape) + dfrom_start[:, half:] * from_start[:, -1:]
    dto_middle = sum_to(dearlier * earlier_keys, shape) + dto_end[:, :half] * from_middle[:, -1:]
    dfirst = np.sum(dfrom_start[:, half:] * from_middle, axis=1)[:, None]
    dsecond = np.sum(dto_end[:, :half] * to_middle, axis=1)[:, None]
    dfrom_start_first = concatenate([dfrom_start[:, : half - 1], dfrom_start[:, half - 1 : half] + dfirst], 1)
    dfrom_middle = concatenate([dfrom_middle[:, :-1], dfrom_middle[:, -1:] + dsecond], 1)
    diagonal = interleave(dproducts[:, :half, ..., :half], dproducts[:, half:, ..., half:])
    drows, dk, ddecay = products_by_halves_vjp(
        halves(rows), halves(k), halves(decay), diagonal,
        interleave(dfrom_start_first, dfrom_middle), interleave(dto_middle, dto_end[:, half:]),
    )  # fmt: skip
    drows = from_halves(drows) + concatenate([zeros(rows[:, :half].shape, k), dlater * from_middle[:, :, :, None]], 1)
    dk = from_halves(dk) + concatenate([dearlier * to_middle, zeros(k[:, half:].shape, k)], 1)
    return drows, dk, from_halves(ddecay)


def decayed_products_vjp(
    rows: Array, k: Array, decay: Array, dproducts: Array, dfrom_start: Array, dto_end: Array
) -> tuple[Array, Array, Array]:
    """The gradients of rows, keys and decays: `decayed_products` in reverse."""
    if decay.shape[3] == k.shape[3]:
        arrays = rows, k, decay, dproducts, dfrom_start, dto_end
        count = max(1, VJP_KEY_ENTRIES // max(1, prod(k.shape[1:])))
        starts = range(0, max(1, k.shape[0]), count)
        grads = [products_by_halves_vjp(*(x[i : i + count] for x in arrays)) for i in starts]
        drows, dk, ddecay = (concatenate(parts, 0) for parts in zip(*grads, strict=True))
        return drows, dk, ddecay
    one = 1.0 + zeros(decay.shape, decay)
    decay_matrix, one_rows = products_by_halves(one[:, :, :, None], one, decay)[0], one[:, :, :, None]
    products = einsum("btgrk,bsgk->btgrs", rows, k)
    ddecay_matrix = np.sum(dproducts * products, axis=3)[:, :, :, None]
    ddecay = products_by_halves_vjp(one_rows, one, decay, ddecay_matrix, dfrom_start, dto_end)[2]
    return *einsum_vjp("btgrk,bsgk->btgrs", rows, k, dproducts * decay_matrix), ddecay


# From chunk to chunk, from position to position -----------------------------------------------------------------------


def scaled_by(x: Array, factor: Array | None) -> Array:
    """The product; the array itself without a factor."""
    return x if factor is None else x * factor


def chunked_form(
    q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array, chunk_size: int,
    erase_key: Array | None, tape: Tape,
) -> tuple[Array, Array]:  # fmt: skip
    """The outputs and the last state, for `recur`, `gla` and `kda`; the state is passed from chunk to chunk.

    On the tape `states` are those after each chunk, `states_before` those before it.

    Within a chunk the values to write solve a triangular system. The solution is linear in the state before the chunk:
    v_new = u - w @ state, by the letters of the WY form of Yang et al. 2024, arXiv:2406.06484, U - W S: u is what a
    chunk would write into an empty state, w what it removes from the state, v_new what it writes.
    """
    b, t, r = q.shape[0], q.shape[1], q.shape[3]
    q, k, v = to_chunks(q, chunk_size), to_chunks(k, chunk_size), to_chunks(v, chunk_size)
    beta = None if beta is None else to_chunks(beta, chunk_size)
    erasing = None if erase_key is None else scaled_by(to_chunks(erase_key, chunk_size), beta)
    beta_v, w = scaled_by(v, beta), None
    rows = q if erasing is None else concatenate([q, erasing[:, :, :, None]], 3)
    if decay is None:
        products, from_start, to_end, chunk_decay = einsum("btgrk,bsgk->btgrs", rows, k), None, None, None
    else:
        products, from_start, to_end = decayed_products(rows, k, to_chunks(decay, chunk_size, 1.0))
        chunk_decay = from_start[:, -1]
    scores = record(tape, scores=where(causal_mask(chunk_size, q)[:, None, None], products[:, :, :, :r], 0.0))
    u = beta_v
    if erasing is not None:
        key_products = record(tape, key_products=where(earlier_mask(chunk_size, q)[:, None], products[:, :, :, r], 0.0))
        inverse = record(tape, inverse=unit_lower_inverse(key_products))
        w = record(tape, w=einsum("btgs,bsgk->btgk", inverse, scaled_by(erasing, from_start)))
        u = record(tape, u=einsum("btgs,bsgv->btgv", inverse, beta_v))

    def body(state, xs):
        k_to_end, w, u, chunk_decay = xs
        v_new = u if w is None else u - einsum("bcgk,bgkv->bcgv", w, state)
        decayed = state if chunk_decay is None else chunk_decay[..., None] * state
        state = decayed + einsum("bcgk,bcgv->bgkv", k_to_end, v_new)
        return state, (v_new, state)

    # No name holds the arrays that only the loop needs.
    final_state, (v_new, states_after) = scan(
        body,
        initial_state,
        with_chunk_axis(b, t, chunk_size, scaled_by(k, to_end), w, u, chunk_decay),
        names=("v_new", "states"),
        tape=tape,
    )
    states_before = concatenate([initial_state[:, None], states_after], 1)[:, :-1]
    states_before = record(tape, states_before=states_before.reshape(q.shape[0], *initial_state.shape[1:]))
    out = einsum("btgrs,bsgv->btgrv", scores, v_new.reshape(v.shape))
    from_start_per_row = None if from_start is None else from_start[:, :, :, None]
    out = out + einsum("btgrk,bgkv->btgrv", scaled_by(q, from_start_per_row), states_before)
    return from_chunks(out, b, t), final_state


def with_chunk_axis(b: int, t: int, chunk_size: int, *arrays: Array | None) -> tuple[Array | None, ...]:
    """Chunks along axis 1: (b n) ... -> b n ..."""
    return tuple(None if x is None else x.reshape(b, -(-t // chunk_size), *x.shape[1:]) for x in arrays)


def recurrent_form(
    q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array,
    erase_key: Array | None, tape: Tape,
) -> tuple[Array, Array]:  # fmt: skip
    """The outputs and the last state: a position decays the state, erases and writes; then its query reads."""

    def body(state, xs):
        k, v, beta, decay, erase_key = xs
        decayed = state if decay is None else decay[..., None] * state
        v_new = v if erase_key is None else v - einsum("bgk,bgkv->bgv", erase_key, decayed)
        v_new = scaled_by(v_new, beta)
        state = decayed + einsum("bgk,bgv->bgkv", k, v_new)
        return state, (v_new, state)

    final_state, (_, states_after) = scan(
        body, initial_state, (k, v, beta, decay, erase_key), names=("v_new", "states"), tape=tape
    )
    return einsum("btgrk,btgkv->btgrv", q, states_after), final_state


def recurrence(
    q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array, chunk_size: int | None,
    delta_rule: bool, tape: Tape, erase_key: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The outputs, `b t h v`, and the last state, `b g k v`.

    Args:
        q, k, v: queries `b t h k`, keys `b t g k`, values `b t g v`.
        beta: `b t g`, the share of each value that is written; None for all.
        decay: `b t g 1` or `b t g k`, the factor that multiplies the state at each position; None for 1.
        initial_state: the state before the first position.
        chunk_size: the length of a chunk, or None for one position after the other.
        delta_rule: whether the value that the state holds for a key is removed before the new one is written.
        erase_key: `b t g k`, by a delta rule the key whose value is removed; None for the one that is written.
    """
    b, t, h, _ = q.shape
    erase_key = k if delta_rule and erase_key is None else erase_key
    beta, q = None if beta is None else beta[..., None], group_heads(q, k.shape[2])
    if chunk_size is None:
        out, final_state = recurrent_form(q, k, v, beta, decay, initial_state, erase_key, tape)
    else:
        out, final_state = chunked_form(q, k, v, beta, decay, initial_state, chunk_size, erase_key, tape)
    return out.reshape(b, t, h, v.shape[3]), final_state


# In reverse -------------------------------------------------------------------------------  # only in NumPy: its rules


def chunked_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array,
    chunk_size: int, erase_key: Array | None, dout: Array, dfinal_state: Array,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of q, k, v, beta, decays, first state and erased keys: `chunked_form` in reverse."""
    b, t, r = q.shape[0], q.shape[1], q.shape[3]
    q, k, v, dout = (to_chunks(x, chunk_size) for x in (q, k, v, dout))
    beta = None if beta is None else to_chunks(beta, chunk_size)
    decay = None if decay is None else to_chunks(decay, chunk_size, 1.0)
    erase_key = None if erase_key is None else to_chunks(erase_key, chunk_size)
    erasing = None if erase_key is None else scaled_by(erase_key, beta)
    w, states_before = tape.get("w"), tape["states_before"]
    from_start, to_end = (None, None) if decay is None else range_products(decay)
    chunk_decay, v_new = None if from_start is None else from_start[:, -1], tape["v_new"].reshape(v.shape)
    from_start_per_row = None if from_start is None else from_start[:, :, :, None]
    dscores, dv_new = einsum_vjp("btgrs,bsgv->btgrv", tape["scores"], v_new, dout)
    dq_decayed, dstates = einsum_vjp("btgrk,bgkv->btgrv", scaled_by(q, from_start_per_row), states_before, dout)
    dproducts = where(causal_mask(chunk_size, q)[:, None, None], record(tape, dscores=dscores), 0.0)

    def body(dstate, xs):
        dv_new, dstate_before, k_to_end, w, v_new, chunk_decay, state_before = xs
        dv_new = dv_new + einsum("bcgk,bgkv->bcgv", k_to_end, dstate)
        dk_to_end, dchunk_decay = einsum("bcgv,bgkv->bcgk", v_new, dstate), np.sum(dstate * state_before, axis=-1)
        dstate = dstate_before + (dstate if chunk_decay is None else chunk_decay[..., None] * dstate)
        dstate = dstate if w is None else dstate - einsum("bcgk,bcgv->bgkv", w, dv_new)
        return dstate, (dv_new, dk_to_end, dchunk_decay)

    xs = with_chunk_axis(b, t, chunk_size, dv_new, dstates, scaled_by(k, to_end), w, v_new, chunk_decay, states_before)
    names = ("dv_new", "dk_to_end", "dchunk_decay")
    dinitial_state, (dv_new, dk_to_end, dchunk_decay) = scan(body, dfinal_state, xs, names=names, reverse=True)
    del xs, dstates  # as large as the states, and not read again
    dv_new, dk_to_end = dv_new.reshape(v.shape), dk_to_end.reshape(k.shape)
    dfrom_start_by_erasing, derasing, derase_key, dbeta_v = 0.0, None, None, dv_new
    if erasing is not None:
        dw = -einsum("btgv,bgkv->btgk", dv_new, states_before)
        dw, du = record(tape, dw=dw, du=dv_new)
        inverse = tape["inverse"]
        dinverse_k, derasing_decayed = einsum_vjp("btgs,bsgk->btgk", inverse, scaled_by(erasing, from_start), dw)
        dinverse_v, dbeta_v = einsum_vjp("btgs,bsgv->btgv", inverse, scaled_by(v, beta), du)
        dkey_products = unit_lower_inverse_vjp(inverse, sum_grads(dinverse_k, dinverse_v))
        dkey_products = record(tape, dkey_products=where(earlier_mask(chunk_size, q)[:, None], dkey_products, 0.0))
        dproducts = concatenate([dproducts, dkey_products[:, :, :, None]], 3)
        dfrom_start_by_erasing, derasing = derasing_decayed * erasing, scaled_by(derasing_decayed, from_start)
    rows = q if erasing is None else concatenate([q, erasing[:, :, :, None]], 3)
    if decay is None:
        (drows, dk), ddecay = einsum_vjp("btgrk,bsgk->btgrs", rows, k, dproducts), None
    else:
        dfrom_start = sum_to(np.sum(dq_decayed * q, axis=3) + dfrom_start_by_erasing, decay.shape)
        dchunk_decay = sum_to(dchunk_decay.reshape(states_before.shape[:-1]), decay[:, 0].shape)[:, None]
        dfrom_start = concatenate([dfrom_start[:, :-1], dfrom_start[:, -1:] + dchunk_decay], 1)
        dto_end = sum_to(dk_to_end * k, decay.shape)
        drows, dk, ddecay = decayed_products_vjp(rows, k, decay, dproducts, dfrom_start, dto_end)
    dq = sum_grads(drows[:, :, :, :r], scaled_by(dq_decayed, from_start_per_row))
    dk, dv, dbeta = sum_grads(dk, scaled_by(dk_to_end, to_end)), scaled_by(dbeta_v, beta), None
    if derasing is not None:
        derasing = sum_grads(derasing, drows[:, :, :, r])
        derase_key = scaled_by(derasing, beta)
    if beta is not None:
        dbeta = np.sum(dbeta_v * v, axis=-1, keepdims=True)
        dbeta = dbeta if derasing is None else dbeta + np.sum(derasing * erase_key, axis=-1, keepdims=True)
    *grads, derase_key = (None if x is None else from_chunks(x, b, t) for x in (dq, dk, dv, dbeta, ddecay, derase_key))
    return *grads, dinitial_state, derase_key


def recurrent_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array,
    erase_key: Array | None, dout: Array, dfinal_state: Array,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of q, k, v, beta, decays, first state and erased keys: `recurrent_form` in reverse."""
    states_after, v_new = tape["states"], tape["v_new"]
    states_before = concatenate([initial_state[:, None], states_after], 1)[:, :-1]
    dq, dstates_after = einsum_vjp("btgrk,btgkv->btgrv", q, states_after, dout)

    def body(dstate, xs):
        dstate_read, k, beta, decay, erase_key, v_new, state_before = xs
        dstate = dstate + dstate_read
        dv_new = einsum("bgk,bgkv->bgv", k, dstate)
        dk = einsum("bgkv,bgv->bgk", dstate, v_new)
        if erase_key is not None:
            dstate = dstate - einsum("bgk,bgv->bgkv", erase_key, scaled_by(dv_new, beta))
        ddecay = np.sum(dstate * state_before, axis=-1)
        return (dstate if decay is None else decay[..., None] * dstate), (dv_new, dk, ddecay)

    xs = record(tape, dstates=dstates_after), k, beta, decay, erase_key, v_new, states_before
    names = ("dv_new", "dk", "ddecay")
    dinitial_state, (dv_new, dk, ddecay) = scan(body, dfinal_state, xs, names=names, reverse=True)
    dv, dbeta, derase_key, difference = scaled_by(dv_new, beta), None, None, v
    if erase_key is not None:
        decayed = states_before if decay is None else decay[..., None] * states_before
        derase_key = -einsum("btgkv,btgv->btgk", decayed, dv)
        difference = v - einsum("btgk,btgkv->btgv", erase_key, decayed)
    if beta is not None:
        dbeta = np.sum(dv_new * difference, axis=-1, keepdims=True)
    ddecay = None if decay is None else sum_to(ddecay, decay.shape)
    return dq, dk, dv, dbeta, ddecay, dinitial_state, derase_key


def recurrence_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array | None, decay: Array | None, initial_state: Array,
    chunk_size: int | None, delta_rule: bool, dout: Array, dfinal_state: Array, erase_key: Array | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of q, k, v, beta, the decays, the first state and an erased key that is not k, from those of the
    outputs and the last state.
    """
    beta, grouped, dout = (
        None if beta is None else beta[..., None],
        group_heads(q, k.shape[2]),
        group_heads(dout, k.shape[2]),
    )
    erased = k if delta_rule and erase_key is None else erase_key
    if chunk_size is None:
        grads = recurrent_form_vjp(tape, grouped, k, v, beta, decay, initial_state, erased, dout, dfinal_state)
    else:
        grads = chunked_form_vjp(
            tape, grouped, k, v, beta, decay, initial_state, chunk_size, erased, dout, dfinal_state
        )
    dq, dk, dv, dbeta, ddecay, dinitial_state, derase_key = grads
    if erase_key is None and derase_key is not None:
        dk, derase_key = sum_grads(dk, derase_key), None
    dbeta = None if dbeta is None else dbeta[..., 0]
    return dq.reshape(q.shape), dk, dv, dbeta, ddecay, dinitial_state, derase_key
