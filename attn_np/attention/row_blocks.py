"""Rows of queries are independent: a call that would form all scores can form them for some rows at a time.

A variant states how it attends, from queries, keys and values to the context, as a function of some rows of queries and
the keys that these see. Small calls, and those that show their weights or intermediates, call it once, with all rows.
Others call it for one block of rows after the other, in memory that grows with t, not with t s. The backward pass
computes a block's scores again (Chen et al. 2016, arXiv:1604.06174).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_np.attention.masks import attention_mask, in_window, relative_positions
from attn_np.contract._band import Band, Span
from attn_np.contract._tape import BackwardTape, residuals_of, save_residuals, wants_intermediates
from attn_np.contract._weighing import Weighing
from attn_np.kernels.weigh import WeighingCall
from attn_np.ops import Array, Tape, record

BLOCK_SCORES = 2**19  # scores in a block: few enough for a core's caches
MIN_ROWS = 16  # queries in a block at least: products of fewer are slow
ONE_BLOCK_SCORES = 2**20  # a call with at most this many scores is one block

# (tape, q, k, v, allowed, relative_position, **score_arrays) -> the context and the weights, of some rows.
AttendRows = Callable[..., tuple[Array, Array]]
# (tape, q, k, v, mask, bias) -> the same, of all rows.
AttendAllRows = Callable[..., Any]


@dataclass(frozen=True)
class RowBlockCall:
    """A call that is made for one block of rows after the other.

    Attributes:
        attend_rows: the function that is called.
        arrays: q by queries, `b t ...`; k and v by keys, `b s ...`; the others broadcastable to `b h t s`.
        band: who sees whom by causality and window.
        max_pairs: how many pairs of a query and a key a block has, unless `min_rows` asks for more.
        min_rows: how many queries it has at least.
    """

    attend_rows: AttendRows
    arrays: dict[str, Array | None]
    band: Band
    max_pairs: int
    min_rows: int

    def blocks(self) -> Iterator[tuple[Span, Span]]:
        """The rows of each block, and the keys that any of them sees."""
        return self.band.row_blocks(self.max_pairs, self.min_rows)

    def block_index(self, name: str, rows: Span, keys: Span) -> Any:
        """The index of a block in one of the arrays; an axis of length 1 serves all."""
        if name in ("q", "k", "v"):
            return (slice(None), slice(*(rows if name == "q" else keys)))
        shape = self.arrays[name].shape[-2:]  # type: ignore[union-attr]
        spans = (rows, keys)[2 - len(shape) :]
        return (..., *(slice(*span) if n > 1 else slice(None) for span, n in zip(spans, shape, strict=True)))

    def run(self, tape: Tape, rows: Span, keys: Span) -> tuple[Array, Array]:
        """The function's results for a block."""
        band = self.band
        arrays = {n: x if x is None else x[self.block_index(n, rows, keys)] for n, x in self.arrays.items()}
        positions = np.arange(*rows)[None] + (band.s - band.t), np.arange(*keys)[None]
        mask, q, k, v = (arrays.pop(name) for name in ("mask", "q", "k", "v"))
        if not band.covers(rows, keys):
            in_band = in_window(*positions, band.left, band.right)
            mask = in_band if mask is None else in_band & mask
        first, last = keys.start - (rows.stop - 1), keys.stop - 1 - rows.start
        relative_position = np.arange(first, last + 1)[None, None] - (band.s - band.t)
        return self.attend_rows(tape, q, k, v, mask, relative_position, **arrays)


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
        weighing: how `attend_rows` weighs scores, if each row is by itself; without dropout, blocks work in place.
        w_mix_scores, w_mix_weights: with a weighing, maps across the heads before and after it, `g h` and `h g`.
        attend_without_blocks: (tape, q, k, v, mask, bias) -> context and weights of all rows; long calls without
            dropout take it instead of blocks. It applies causality and the window itself.
        score_arrays: further arrays that are broadcastable to the scores `b h t s`, or None.
    """
    band, arrays = (
        Band.of(q.shape[1], k.shape[1], causal, window),
        {"q": q, "k": k, "v": v, "mask": mask} | score_arrays,
    )
    maps = w_mix_scores, w_mix_weights
    supported = all(x is None or type(x) in (np.ndarray, np.memmap) for x in (*arrays.values(), *maps))
    heads = q.shape[2] if q.ndim == 4 else 1
    batch_scores_per_pair = q.shape[0] * (scores_per_pair or heads)  # for each query and key
    one_block = batch_scores_per_pair * band.t * band.s <= ONE_BLOCK_SCORES
    like_full_pass = step is None or step.like_full_pass
    needs_weights = return_weights or wants_intermediates(tape)
    if one_block or not supported or not like_full_pass or needs_weights or implementation == "textbook":
        masking: Any = {"causal": causal, "window": window, "step": step}
        allowed = attention_mask(mask, band.t, band.s, like=q, **masking)
        return attend_rows(
            tape, q, k, v, allowed, relative_positions(band.t, band.s, like=q, step=step), **score_arrays
        )
    if weighing is not None and score_arrays["keep"] is None:
        heads_per_block = max([1, *(n for x in maps if x is not None for n in x.shape)])
        blocks = tuple(band.row_blocks((4 if weighing.elementwise else 1) * BLOCK_SCORES // heads_per_block, MIN_ROWS))
        weighed = WeighingCall(weighing, q, k, v, mask, score_arrays["bias"], band, blocks, *maps)
        save_residuals(tape, weighed)
        return record(tape, context=weighed.context()), None
    if attend_without_blocks is not None and score_arrays["keep"] is None:
        return attend_without_blocks(tape, q, k, v, mask, score_arrays["bias"])
    call = RowBlockCall(
        attend_rows, arrays, band, block_size_factor * BLOCK_SCORES // batch_scores_per_pair, min_rows or MIN_ROWS
    )
    save_residuals(tape, call)
    context = np.concatenate([call.run(None, rows, keys)[0] for rows, keys in call.blocks()], 1)
    return record(tape, context=context), None


def attend_in_row_blocks_vjp(
    attend_rows_vjp: Callable[[Tape, Array], dict[str, Array | None]],
    tape: Tape,
    dcontext: Array,
    attend_without_blocks_vjp: Callable[[Tape, Array], dict[str, Array | None]] | None = None,
) -> dict[str, Any]:
    """The gradients of q, k, v, of the arrays by scores and of parameters, by name.

    Args:
        attend_rows_vjp: (tape, gradient of the context) -> these gradients, from the tape of one call of `attend_rows`.
        attend_without_blocks_vjp: the same from the tape of `attend_without_blocks`, of a variant that has it.
    """
    call = residuals_of(tape)
    if call is None:
        return attend_rows_vjp(tape, dcontext)
    if isinstance(call, WeighingCall):
        return call.vjp(dcontext)
    if not isinstance(call, RowBlockCall) and attend_without_blocks_vjp is not None:
        return attend_without_blocks_vjp(tape, dcontext)
    grads: dict[str, Any] = {}
    for rows, keys in call.blocks():
        tape = BackwardTape()
        call.run(tape, rows, keys)
        for name, grad in attend_rows_vjp(tape, dcontext[:, slice(*rows)]).items():
            x = call.arrays.get(name)
            if grad is None:
                grads[name] = None
            elif x is None:
                grads[name] = grads[name] + grad if name in grads else grad
            else:
                total = grads.setdefault(name, np.zeros(x.shape, grad.dtype))
                total[call.block_index(name, rows, keys)] += grad
    return grads
