"""Linear recurrences, position by position or in chunks: a state that decays, is erased along a key, and is written."""

from math import prod

from attn_torch.ops import (
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
