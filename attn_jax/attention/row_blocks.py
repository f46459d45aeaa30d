"""Rows of queries are independent: a call that would form all scores can form them for some rows at a time.

A variant states how it attends, from queries, keys and values to the context, as a function of some rows of queries and
the keys that these see. Small calls, and those that show their weights or intermediates, call it once, with all rows.
Others call it for one block of rows after the other, in memory that grows with t, not with t s. The backward pass
computes a block's scores again (Chen et al. 2016, arXiv:1604.06174). Blocks have derivatives in reverse mode alone.

Blocks have one shape, so that a loop is one program. Causality makes stretches of keys of every length; so the queries
are first cut into a few parts, each with a loop of its own over the keys that its last query sees.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from attn_jax.attention.masks import attention_mask, in_window, relative_positions
from attn_jax.kernels.weigh import attend_by_sigmoid
from attn_jax.ops import Array, Tape
from attn_jax.ops.products import reverse_mode_products
from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing

BLOCK_SCORES = 2**19  # scores in a block
MIN_ROWS = 16  # queries in a block at least: products of fewer are slow
ONE_BLOCK_SCORES = 2**20  # a call with at most this many scores is one block
CAUSAL_LOOPS = 4  # loops of a call that sees only few later keys: causal, or a window with a short right side

# (tape, q, k, v, allowed, relative_position, **score_arrays) -> the context and the weights, of some rows.
AttendRows = Callable[..., tuple[Array, Array]]
# (tape, q, k, v, mask, bias) -> the same, of all rows.
AttendAllRows = Callable[..., Any]


def attend_in_row_blocks(
    attend_rows: AttendRows,
    tape: Tape,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    step: Any = None,
    return_weights: bool = False,
    implementation: str = "auto",
    block_size_factor: int = 1,
    min_rows: int | None = None,
    scores_per_pair: int | None = None,
    weighing: Weighing | None = None,
    w_mix_scores: Array | None = None,
    w_mix_weights: Array | None = None,
    attend_without_blocks: AttendAllRows | None = None,
    **score_arrays: Array | None,
) -> tuple[Array, Array | None]:
    """The context, `b t ...`, and the weights, which are None where rows are taken block by block.

    Args:
        attend_rows: (tape, q, k, v, allowed, relative_position, **score_arrays) -> context and weights, for any rows of
            queries and a stretch of keys with all that these rows see. The relative position is the key's minus the
            query's: `b t s`, or `1 1 n` for each diagonal of a block, which `diagonals_to_pairs` takes.
        tape: that of the call.
        q, k, v: `b t h ...`, `b s g ...` and `b s g ...`.
        mask, causal, window, step: who may attend to whom.
        return_weights: whether the weights are needed.
        implementation: "textbook" for all rows at once.
        block_size_factor: factor on the usual size of a block, larger where `attend_rows` splits it again or is costly.
        min_rows: how many queries a block has at least; `MIN_ROWS` by default.
        scores_per_pair: how many numbers `attend_rows` has for each pair of a query and a key; by default h, or 1.
        weighing: how `attend_rows` weighs scores, if each row is by itself; without dropout a sigmoid has blocks of
            its own.
        w_mix_scores, w_mix_weights: maps across the heads before and after the weighing; here only `attend_rows` has
            them.
        attend_without_blocks: (tape, q, k, v, mask, bias) -> context and weights of all rows; long calls take it
            instead of blocks of `attend_rows`.
            Used instead of blocks if there is no dropout; it applies causality and the window itself.
        score_arrays: further arrays that are broadcastable to the scores `b h t s`, or None.
    """
    b, t, s = *q.shape[:2], k.shape[1]
    heads = q.shape[2] if q.ndim == 4 else 1
    batch_scores_per_pair = b * (scores_per_pair or heads)  # for each query and key
    one_block = (
        tape is not None
        or return_weights
        or implementation == "textbook"
        or step is not None
        or any(map(jax.export.is_symbolic_dim, (b, t, s)))
    )
    if one_block or batch_scores_per_pair * t * s <= ONE_BLOCK_SCORES:
        masking: Any = {"causal": causal, "window": window, "step": step}
        allowed = attention_mask(mask, t, s, like=q, **masking)
        return attend_rows(tape, q, k, v, allowed, relative_positions(t, s, like=q, step=step), **score_arrays)
    if attend_without_blocks is not None and score_arrays["keep"] is None:
        return attend_without_blocks(tape, q, k, v, mask, score_arrays["bias"])
    band = Band.of(t, s, causal, window)
    if weighing is not None and weighing.elementwise:
        if score_arrays["keep"] is None:
            return attend_by_sigmoid(weighing, band, q, k, v, mask, score_arrays["bias"]), None
        block_size_factor *= 2  # few passes over the scores: large products are worth more
    score_arrays = {"mask": mask} | score_arrays
    max_pairs = block_size_factor * BLOCK_SCORES // batch_scores_per_pair
    parts = CAUSAL_LOOPS if band.right is not None and band.right < s // 2 else 1
    edges = [t * i // parts for i in range(parts + 1)]
    spans = [Span(*edge) for edge in pairwise(edges)]
    return jnp.concatenate(
        [
            attend_equal_blocks(attend_rows, q, k, v, score_arrays, band, rows, max_pairs, min_rows or MIN_ROWS)
            for rows in spans
            if rows.length
        ],
        1,
    ), None


def attend_equal_blocks(
    attend_rows: AttendRows,
    q: Array,
    k: Array,
    v: Array,
    score_arrays: dict[str, Array | None],
    band: Band,
    rows: Span,
    max_pairs: int,
    min_rows: int,
) -> Array:
    """The context of some rows, in blocks of about `max_pairs` pairs of a query and a key, fewer under a short window,
    or of `min_rows` rows. Each has a stretch of keys of the same length.
    """
    t, s = rows.length, band.s
    seen_keys = band.keys(rows)
    num_seen = max(1, seen_keys.length)
    window_length = band.left + band.right if band.left is not None and band.right is not None else num_seen
    block_rows = min(t, max(min_rows, max_pairs // min(num_seen, window_length + MIN_ROWS)))
    if window_length < num_seen:  # longer blocks have corners that the window hides, and leave the caches
        block_rows = min(block_rows, max(4 * MIN_ROWS, window_length // 16))
    block_rows = -(-t // -(-t // block_rows))
    block_keys = min(num_seen, window_length + block_rows)  # of the stretch of keys
    num_blocks = -(-t // block_rows)

    def in_blocks(x: Array, axis: int) -> Array:
        """Rows in blocks, the last one filled up with zeros: `... t ...` -> `i ... n ...`."""
        x = jax.lax.slice_in_dim(x, *rows, axis=axis)
        x = jnp.pad(x, [(0, num_blocks * block_rows - t) if i == axis else (0, 0) for i in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*x.shape[:axis], num_blocks, block_rows, *x.shape[axis + 1 :]), axis, 0)

    present = {name: jnp.asarray(x) for name, x in score_arrays.items() if x is not None}
    by_row = {name: in_blocks(x, x.ndim - 2) for name, x in present.items() if x.ndim > 1 and x.shape[-2] > 1}

    # Heads come first in products, and keys are columns. Both are put in order once, and so is what the blocks return:
    # XLA would do it in every block, or make a product write another order, which takes twice the time.
    k, v = jnp.moveaxis(k, 1, -1), v.swapaxes(1, 2)

    def block(i: Array, q: Array, by_row: dict[str, Array]) -> Array:
        first_row = rows.start + i * block_rows
        first_key = min(seen_keys.start, s - 1)
        if block_keys < num_seen:
            first_key = jnp.clip(
                first_row + s - band.t - (band.left or 0), first_key, first_key + num_seen - block_keys
            )

        def keys_of_block(x: Array, axis: int) -> Array:
            return x if x.shape[axis] == 1 < s else jax.lax.dynamic_slice_in_dim(x, first_key, block_keys, axis)

        arrays = {name: None if x is None else by_row.get(name, present[name]) for name, x in score_arrays.items()}
        arrays = {name: x if x is None or x.ndim == 0 else keys_of_block(x, x.ndim - 1) for name, x in arrays.items()}
        positions = (
            (first_row + jnp.arange(block_rows) + (s - band.t))[None],
            (first_key + jnp.arange(block_keys))[None],
        )
        allowed = arrays.pop("mask")
        if band.left is not None or band.right is not None:
            in_band = in_window(*positions, band.left, band.right)
            allowed = in_band if allowed is None else in_band & allowed
        relative_position = jnp.arange(1 - block_rows, block_keys)[None, None] + first_key - (first_row + s - band.t)
        # Without the barrier XLA hoists the transpose back out of the loop, and puts all keys in order in each block.
        q, block_k, block_v = jax.lax.optimization_barrier((q, keys_of_block(k, k.ndim - 1), keys_of_block(v, 2)))
        block_k, block_v = jnp.moveaxis(block_k, -1, 1), block_v.swapaxes(1, 2)
        with reverse_mode_products():
            return attend_rows(None, q, block_k, block_v, allowed, relative_position, **arrays)[0].swapaxes(1, 2)

    # The backward pass of a loop keeps what every turn computes, unless it is computed again.
    checkpointed = jax.checkpoint(block, prevent_cse=False)
    context = jax.lax.map(lambda turn: checkpointed(*turn), (jnp.arange(num_blocks), in_blocks(q, 1), by_row))
    context = jnp.moveaxis(context, (0, 3), (1, 2))
    return context.reshape(context.shape[0], num_blocks * block_rows, *context.shape[3:])[:, :t]
