"""Rows of queries are independent: a call that would form all scores can form them for some rows at a time.

A variant states how it attends, from queries, keys and values to the context, as a function of some rows of queries and
the keys that these see. Small calls, and those that show their weights or intermediates, call it once, with all rows.
Others call it for one block of rows after the other, in memory that grows with t, not with t s. The backward pass
computes a block's scores again (Chen et al. 2016, arXiv:1604.06174).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing
from attn_torch.attention.masks import attention_mask, in_window, relative_positions
from attn_torch.kernels.sdpa import under_transform
from attn_torch.kernels.sharded import is_sharded
from attn_torch.kernels.weigh import WeighingFunction
from attn_torch.ops import Array, Tape, allows_data_dependent_shapes

# Scores in a block: on a CPU they should stay in its caches, a GPU wants large products.
CPU_BLOCK_SCORES, GPU_BLOCK_SCORES = 2**19, 2**25
MIN_ROWS = 16  # queries in a block at least: products of fewer are slow
ONE_BLOCK_SCORES = 2**20  # a call with at most this many scores is one block

# (tape, q, k, v, allowed, relative_position, **score_arrays) -> the context and the weights, of some rows.
AttendRows = Callable[..., tuple[Array, Array]]
# (tape, q, k, v, mask, bias) -> the same, of all rows.
AttendAllRows = Callable[..., Any]


def block_last_query_first(x: Array | None, rows: Span, keys: Span) -> Array | None:
    """The block's part of an array broadcastable to `b h t s`, the last row first; an axis of length 1 serves all."""
    if x is None or x.ndim == 0:
        return x
    x = x[..., slice(*keys)] if x.shape[-1] > 1 else x
    return x[..., slice(*rows), :].flip(-2) if x.ndim > 1 and x.shape[-2] > 1 else x


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

    What is compiled, transformed by `torch.func` or a DTensor takes all rows at once: PyTorch's transforms do not know
    a function that is computed again.

    Args:
        attend_rows: (tape, q, k, v, allowed, relative_position, **score_arrays) -> context and weights, for any rows of
            queries and a stretch of keys with all that these rows see. The relative position is the key's minus the
            query's: `b t s`, or `1 1 n` for each diagonal of a block, which `diagonals_to_pairs` takes.
        tape: that of the call.
        q, k, v: `b t h ...`, `b s g ...` and `b s g ...`.
        mask, causal, window, step: who may attend to whom.
        return_weights: whether the weights are needed.
        implementation: "textbook" for all rows at once.
        block_size_factor: factor on the usual size of a block on a CPU, larger where `attend_rows` splits it again
            or is costly; on a GPU it has no effect.
        min_rows: how many queries a block has at least; `MIN_ROWS` by default.
        scores_per_pair: how many numbers `attend_rows` has for each pair of a query and a key; by default h, or 1.
        weighing: how `attend_rows` weighs scores, if each row is by itself; on a CPU, without dropout, blocks work in
            place.
        w_mix_scores, w_mix_weights: with a weighing, maps across the heads before and after it, `g h` and `h g`.
        attend_without_blocks: (tape, q, k, v, mask, bias) -> context and weights of all rows; long calls take it
            instead of blocks of `attend_rows`.
            Used instead of blocks if there is no dropout; it applies causality and the window itself.
        score_arrays: further arrays that are broadcastable to the scores `b h t s`, or None.
    """
    t, s = q.shape[1], k.shape[1]
    heads = q.shape[2] if q.ndim == 4 else 1
    batch_scores_per_pair = q.shape[0] * (scores_per_pair or heads)  # for each query and key
    maps = w_mix_scores, w_mix_weights
    arrays = q, k, v, mask, *score_arrays.values(), *maps
    one_block = (
        tape is not None
        or return_weights
        or implementation == "textbook"
        or torch.compiler.is_compiling()
        or is_sharded(q)
    )
    one_block = (
        one_block or (step is not None and not step.like_full_pass) or batch_scores_per_pair * t * s <= ONE_BLOCK_SCORES
    )
    if one_block or any(x is not None and x.is_meta for x in arrays) or under_transform(*arrays):
        masking: Any = {"causal": causal, "window": window, "step": step}
        allowed = attention_mask(mask, t, s, like=q, **masking)
        return attend_rows(tape, q, k, v, allowed, relative_positions(t, s, like=q, step=step), **score_arrays)
    if attend_without_blocks is not None and score_arrays["keep"] is None:
        return attend_without_blocks(tape, q, k, v, mask, score_arrays["bias"])
    band = Band.of(t, s, causal, window)
    if weighing is not None and score_arrays["keep"] is None and q.is_cpu and allows_data_dependent_shapes(q):
        heads_per_block = max([1, *(n for x in maps if x is not None for n in x.shape)])
        blocks = tuple(
            band.row_blocks((4 if weighing.elementwise else 1) * CPU_BLOCK_SCORES // heads_per_block, MIN_ROWS)
        )
        context: Any = WeighingFunction.apply(q, k, v, mask, score_arrays["bias"], *maps, weighing, band, blocks)
        return context, None

    def block(rows: Span, keys: Span) -> Array:
        """The context of some rows. `attend_rows` gets the last one first, as `diagonals_to_pairs` has them."""
        allowed = block_last_query_first(mask, rows, keys)
        if not band.covers(rows, keys):
            query_positions = torch.arange(*rows, device=q.device).flip(0)[None] + (s - t)
            key_positions = torch.arange(*keys, device=q.device)[None]
            in_band = in_window(query_positions, key_positions, band.left, band.right)
            allowed = in_band if allowed is None else in_band & allowed
        arrays = {name: block_last_query_first(x, rows, keys) for name, x in score_arrays.items()}
        first, last = keys.start - (rows.stop - 1), keys.stop - 1 - rows.start
        relative_position = torch.arange(first, last + 1, device=q.device)[None, None] - (s - t)
        queries, columns = q[:, slice(*rows)].flip(1), slice(*keys)
        return attend_rows(None, queries, k[:, columns], v[:, columns], allowed, relative_position, **arrays)[0].flip(1)

    options: Any = {"use_reentrant": False, "preserve_rng_state": False}
    attend_block: Any = partial(checkpoint, block, **options) if torch.is_grad_enabled() else block
    block_scores = block_size_factor * CPU_BLOCK_SCORES if q.is_cpu else GPU_BLOCK_SCORES
    blocks = band.row_blocks(block_scores // batch_scores_per_pair, min_rows or MIN_ROWS)
    return torch.cat([attend_block(rows, keys) for rows, keys in blocks], 1), None
