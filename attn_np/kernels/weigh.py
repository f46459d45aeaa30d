"""Sigmoid, sparse and mixed-head attention in blocks of queries, computed in place.

A block is some queries of one head and the keys that they may see; of all heads, where maps mix these. Its scores stay
in a core's caches while they become weights, and then are gone; the backward pass computes them again. Every pass over
them counts: the textbook writes a dozen arrays of this size. Here the passes that make the weights are

- for a sigmoid a difference, an exponential, a sum with 1 and a quotient;
- for a softmax whose scores and weights are mixed a largest score, a difference, an exponential, a sum and a quotient;
- for sparsemax and entmax Newton's steps to the threshold, which never pass it from below, since the sum is convex
  (Michelot 1986). They start from the threshold of the largest of every few scores, which is never above that of
  all, since more scores only raise it. Few scores lie above that, and the remaining steps are for these.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from attn_np.attention.masks import hide_neg_inf, in_window
from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing
from attn_np.kernels.flash import Scratch, in_threads
from attn_np.ops import Array, upcast
from attn_np.ops.vjp import sum_to

SCORES_PER_MAXIMUM = 16  # groups of this many scores are reduced to their largest
COARSE_STEP = 2.0**-7  # Newton's steps on the largest of each group stop below this length
# Keys in a block of a sigmoid, whose weights do not depend on other keys; products of nearly square blocks are fastest.
BLOCK_KEYS = 512


class HeadBlock(NamedTuple):
    """The heads of one sequence of the batch that a block has: one, or all where maps mix them."""

    batch: Span
    heads: Span


@dataclass(frozen=True)
class WeighingCall:
    """A call: its arrays `b t g k`, `b s g k` and `b s g v`, mask and bias broadcastable to `b h t s`.

    Attributes:
        weighing: which function of the scores the weights are, with its scale, softcap and offset.
        band: who sees whom by causality and window.
        blocks: the queries of each block, and the keys that any of them sees.
        w_mix_scores, w_mix_weights: maps across the heads before and after the weighing, `g h` and `h g`, or None.
    """

    weighing: Weighing
    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    band: Band
    blocks: tuple[tuple[Span, Span], ...]
    w_mix_scores: Array | None = None
    w_mix_weights: Array | None = None

    def context(self) -> Array:
        """The weighted sums of the values, `b t g v`."""
        context = zeros_by_head((*self.q.shape[:3], self.v.shape[-1]), self.q.dtype)

        def attend_heads(head_block: HeadBlock) -> None:
            for block in self.weighed_blocks(head_block, Scratch()):
                part = positions_view(context, head_block, block.rows)
                part += block.mixed_weights @ block.v

        with np.errstate(invalid="ignore", over="ignore"):  # hidden numbers may overflow or be NaN
            in_threads(attend_heads, lambda threads: self.head_blocks)
        return context

    def vjp(self, dcontext: Array) -> dict[str, Array | None]:
        """The gradients of q, k, v and the bias, and of the maps, by the names that these have in a layer."""
        dq, dk, dv = (zeros_by_head(x.shape, x.dtype) for x in (self.q, self.k, self.v))
        dbias = None if self.bias is None else np.zeros(rank4(self.bias).shape, self.q.dtype)
        maps = {"w_mix_scores": self.w_mix_scores, "w_mix_weights": self.w_mix_weights}
        dmaps: dict[str, Any] = {name: np.zeros_like(x) for name, x in maps.items() if x is not None}

        def task_key(head_block: HeadBlock) -> Any:
            """What head blocks share if they add to the same entries of the bias's or the maps' gradients: one task."""
            if dmaps or dbias is None:
                return () if dmaps else head_block
            return tuple(x for x, n in zip(head_block, dbias.shape, strict=False) if n > 1)

        def add_heads(head_blocks: list[HeadBlock]) -> None:
            scratch = Scratch()
            for head_block in head_blocks:
                for block in self.weighed_blocks(head_block, scratch):
                    add_block(head_block, block, scratch)

        def add_block(head_block: HeadBlock, block: WeighedBlock, scratch: Scratch) -> None:
            dy, weights = positions_view(dcontext, head_block, block.rows), block.weights
            dv_part, dk_part = (positions_view(x, head_block, block.columns) for x in (dv, dk))
            dq_part = positions_view(dq, head_block, block.rows)
            shape, dtype = block.mixed_weights.shape, weights.dtype
            dv_part += block.mixed_weights.mT @ dy
            dweights = dmixed_weights = np.matmul(dy, block.v.mT, out=scratch("dmixed_weights", shape, dtype))
            if self.w_mix_weights is not None:
                dmaps["w_mix_weights"] += heads_as_rows(weights) @ heads_as_rows(dmixed_weights).T
                dweights = mix(self.w_mix_weights, dmixed_weights, scratch("dweights", weights.shape, dtype))
            for x, dx in zip(weights[0], dweights[0], strict=True):
                scores_vjp_(self.weighing, x, dx)
            dscores = dmixed_scores = dweights  # `scores_vjp_` wrote over them
            if dbias is not None:
                part = dbias[block_slices(dbias, (*head_block, block.rows, block.columns))]
                part += sum_to(dmixed_scores, part.shape)
            if block.tanh is not None:
                tanh_slope = 1 - block.tanh * block.tanh
                np.copyto(tanh_slope, 0, where=dmixed_scores == 0)  # the slope at a hidden inf - inf is NaN
                dmixed_scores *= tanh_slope
            if self.w_mix_scores is not None:
                dmaps["w_mix_scores"] += heads_as_rows(block.scores) @ heads_as_rows(dmixed_scores).T
                dscores = mix(self.w_mix_scores, dmixed_scores, scratch("dscores", shape, dtype))
            dq_part += (dscores @ block.k) * self.weighing.scale
            dk_part += dscores.mT @ block.q

        tasks = [list(task) for _, task in groupby(sorted(self.head_blocks, key=task_key), task_key)]
        with np.errstate(invalid="ignore", over="ignore"):
            in_threads(add_heads, lambda threads: tasks)
        return {"q": dq, "k": dk, "v": dv, "bias": None if dbias is None else dbias.reshape(self.bias.shape)} | dmaps  # type: ignore[union-attr]

    @property
    def head_blocks(self) -> list[HeadBlock]:
        """What is cut into blocks of queries: every head of every sequence, or all of its heads if mixed."""
        maps = [x for x in (self.w_mix_scores, self.w_mix_weights) if x is not None]
        heads_per_block = max([1, *(n for x in maps for n in x.shape)])
        b, _, g, _ = self.q.shape
        return [
            HeadBlock(Span(i, i + 1), Span(j, j + heads_per_block))
            for i in range(b)
            for j in range(0, g, heads_per_block)
        ]

    def weighed_blocks(self, head_block: HeadBlock, scratch: Scratch) -> Iterator["WeighedBlock"]:
        """The blocks of some heads with their weights, which the next block writes over."""
        arrays = (positions_view(x, head_block, Span(0, x.shape[1])) for x in (self.q, self.k, self.v))
        # In one order in memory, and keys as columns, products take two thirds of the time.
        all_q, all_k, all_v = (np.ascontiguousarray(x) for x in arrays)
        all_q, transposed_k = all_q * self.q.dtype.type(self.weighing.scale), np.ascontiguousarray(all_k.mT)
        for rows, key_span in self.blocks:
            block_weighing, width = self.weighing, BLOCK_KEYS if self.weighing.elementwise else key_span.length
            if self.weighing.elementwise and self.weighing.score_offset is None:
                count = key_counts(self.allowed_pairs(head_block, rows, key_span), (rows.length, key_span.length))
                block_weighing = replace(self.weighing, score_offset=-np.log(np.maximum(count, 1).astype(all_q.dtype)))
            for columns in (
                Span(i, min(i + width, key_span.stop)) for i in range(key_span.start, key_span.stop, width)
            ):
                q, k, v = (x[:, :, slice(*span)] for x, span in ((all_q, rows), (all_k, columns), (all_v, columns)))
                shape, tanh = (q.shape[1], rows.length, columns.length), None
                scores = np.matmul(q, transposed_k[..., slice(*columns)], out=scratch("scores", (1, *shape), q.dtype))
                mixed_scores = scores
                if self.w_mix_scores is not None:
                    shape = len(self.w_mix_scores.T), *shape[1:]
                    mixed_scores = mix(self.w_mix_scores.T, scores, scratch("mixed_scores", (1, *shape), q.dtype))
                if self.weighing.softcap is not None:
                    np.divide(mixed_scores, self.weighing.softcap, out=mixed_scores)
                    tanh = np.tanh(mixed_scores, out=mixed_scores).copy()
                    mixed_scores *= self.weighing.softcap
                if self.bias is not None:
                    bias = rank4(self.bias)
                    mixed_scores += upcast(bias[block_slices(bias, (*head_block, rows, columns))])
                allowed = self.allowed_pairs(head_block, rows, columns)
                for i, x in enumerate(mixed_scores[0]):
                    weigh_(block_weighing, x, None if allowed is None else allowed[0, min(i, allowed.shape[1] - 1)])
                mixed_weights = weights = mixed_scores
                if self.w_mix_weights is not None:
                    shape = len(self.w_mix_weights.T), *shape[1:]
                    mixed_weights = mix(self.w_mix_weights.T, weights, scratch("mixed_weights", (1, *shape), q.dtype))
                yield WeighedBlock(rows, columns, q, k, v, scores, weights, mixed_weights, tanh)

    def allowed_pairs(self, head_block: HeadBlock, rows: Span, columns: Span) -> Array | None:
        """Which queries of a block see which of its keys, broadcastable to `1 h t s`; None: each sees all."""
        mask, bias = (
            None if x is None else rank4(x)[block_slices(rank4(x), (*head_block, rows, columns))]
            for x in (self.mask, self.bias)
        )
        allowed = hide_neg_inf(mask, bias)
        if self.band.covers(rows, columns):
            return allowed
        positions = np.arange(*rows)[None] + (self.band.s - self.band.t), np.arange(*columns)[None]
        in_band = in_window(*positions, self.band.left, self.band.right)[None]
        return in_band if allowed is None else in_band & allowed


@dataclass(frozen=True)
class WeighedBlock:
    """Some queries of some heads and the keys that they may see.

    Attributes:
        rows, columns: the spans of queries and keys.
        q, k, v: their arrays, `1 g t k`, `1 g s k` and `1 g s v`; the queries are scaled.
        scores, weights, mixed_weights: `1 g t s`, `1 h t s` and `1 g t s`; without maps all three are one array, which
            holds the weights.
        tanh: that of the softcap.
    """

    rows: Span
    columns: Span
    q: Array
    k: Array
    v: Array
    scores: Array
    weights: Array
    mixed_weights: Array
    tanh: Array | None


def zeros_by_head(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Zeros `b t h k`, contiguous in memory head by head, as the blocks add to them."""
    b, t, h, k = shape
    return np.zeros((b, h, t, k), dtype).swapaxes(1, 2)


def positions_view(x: Array, head_block: HeadBlock, positions: Span) -> Array:
    """The view `1 n t k` of some heads and positions of an array `b t h k`."""
    return x[slice(*head_block.batch), slice(*positions), slice(*head_block.heads)].swapaxes(1, 2)


def rank4(x: Any) -> Any:
    """An array broadcastable to the scores with four axes; None stays None."""
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape)


def block_slices(x: Array, spans: tuple[Span, ...]) -> Any:
    """The index of a block in an array `b h t s`; an axis of length 1 serves all."""
    return tuple(slice(*span) if n > 1 else slice(None) for n, span in zip(x.shape, spans, strict=True))


def heads_as_rows(x: Array) -> Array:
    """Scores `1 h t s` as a row for each head."""
    return x.reshape(x.shape[1], -1)


def mix(matrix: Array, x: Array, out: Array) -> Array:
    """A map across heads: a matrix `h g` times x, `1 g t s` with heads as rows, is `1 h t s`."""
    np.matmul(matrix, heads_as_rows(x), out=heads_as_rows(out))
    return out


def key_counts(allowed: Array | None, shape: tuple[int, int]) -> Array:
    """How many keys each query of a head sees, `t 1`; `1 1` where each sees all."""
    if allowed is None:
        return np.full((1, 1), shape[1])
    return np.broadcast_to(allowed, (1, 1, *shape))[0, 0].sum(-1, keepdims=True)


# In place -------------------------------------------------------------------------------------------------------------


def weigh_(weighing: Weighing, scores: Array, allowed: Array | None) -> None:
    """Turn scores `t s` into weights, in place; a sigmoid's offset is a number or a column."""
    if weighing.name == "softmax":
        softmax_(scores, allowed)
        return
    if weighing.name != "sigmoid":
        sparse_weights_(scores, allowed, 1 if weighing.name == "sparsemax" else 2)
        return
    np.subtract(-weighing.score_offset, scores, out=scores, dtype=scores.dtype)
    np.exp(scores, out=scores)  # inf where a weight is too small to be told from 0
    scores += 1
    np.divide(1, scores, out=scores, dtype=scores.dtype)  # half the time of np.reciprocal
    if allowed is not None:
        np.copyto(scores, 0, where=~allowed)


def softmax_(scores: Array, allowed: Array | None) -> None:
    """A softmax, in place: 0 where nothing is allowed, NaN where what is allowed is all -inf."""
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    top = scores.max(1, keepdims=True)
    all_neg_inf = top == -np.inf
    scores -= np.where(all_neg_inf, 0, top)
    np.exp(scores, out=scores)
    total = scores @ np.ones((scores.shape[1], 1), scores.dtype)
    total[all_neg_inf] = 1
    total[all_neg_inf & (True if allowed is None else np.any(allowed, axis=1, keepdims=True))] = np.nan
    scores /= total


def sparse_weights_(scores: Array, allowed: Array | None, power: int) -> None:
    """Sparsemax (power 1) or 1.5-entmax (power 2), in place: ((score - tau) / power)^power where it is positive, with
    tau such that they add up to 1.
    """
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    t, s = scores.shape
    num_grouped = s - s % SCORES_PER_MAXIMUM
    tops = np.concatenate(
        [scores[:, :num_grouped].reshape(t, SCORES_PER_MAXIMUM, -1).max(1), scores[:, num_grouped:]], 1
    )
    top = tops.max(1, keepdims=True)
    all_neg_inf = top == -np.inf
    shift = np.where(all_neg_inf, 0, top)
    tau = np.full_like(top, -power)  # where the largest alone, which is 0 then, weighs 1
    tau = threshold_from_below(tops - shift, tau, power, COARSE_STEP)
    eps = float(np.finfo(scores.dtype).eps)
    margin = 4 * eps * (np.abs(shift) + power)  # for the roundings of this comparison
    kept_at = np.flatnonzero(scores > shift + tau - margin)
    row = kept_at // s
    count = np.bincount(row, minlength=t)
    place = np.arange(len(kept_at)) - (np.cumsum(count) - count)[row]
    kept_scores = np.full((t, max(1, count.max())), -np.inf, scores.dtype)
    kept_scores[row, place] = scores.reshape(-1)[kept_at] - shift[row, 0]
    weights = np.maximum(kept_scores - threshold_from_below(kept_scores, tau, power, eps), 0)
    scores.fill(0)
    scores.reshape(-1)[kept_at] = (weights if power == 1 else weights * weights * 0.25)[row, place]
    undefined = ~(top < np.inf)
    undefined |= all_neg_inf if allowed is None else all_neg_inf & np.any(allowed, axis=1, keepdims=True)
    if undefined.any():
        np.copyto(scores, np.nan, where=undefined)


def threshold_from_below(z: Array, tau: Array, power: int, tolerance: float) -> Array:
    """The tau of each row for which the sum of max(z - tau, 0)^power is power^power; the argument `tau` is a lower
    bound of it.

    Steps end with one that is not longer than `tolerance`.
    """
    above, ones = np.empty_like(z), np.ones((z.shape[1], 1), z.dtype)
    while True:
        np.maximum(np.subtract(z, tau, out=above), 0, out=above)
        if power == 1:
            total, slope = above @ ones, np.sign(above, out=above) @ ones
        else:
            slope, total = 2 * (above @ ones), np.square(above, out=above) @ ones
        next_tau = tau + (total - power**power) / np.where(slope == 0, 1, slope)
        if not (next_tau > tau + tolerance).any():
            return np.maximum(tau, next_tau)
        tau = np.maximum(tau, next_tau)


def scores_vjp_(weighing: Weighing, weights: Array, dweights: Array) -> None:
    """Turn the gradient of the weights `t s` into that of the scores, in place; the weights are used up."""
    if weighing.name == "sigmoid":  # p (1 - p)
        dweights *= weights
        dweights *= np.subtract(1, weights, out=weights)
        return
    if weighing.name == "softmax":  # p (dp - sum of p dp)
        dweights -= np.einsum("ts,ts->t", weights, dweights)[:, None]
        dweights *= weights
        return
    # On the support a weight's slope p^(2 - alpha) is 1 or sqrt(p). The threshold takes off dp's mean, weighted by the
    # slopes.
    slope = np.sign(weights, out=weights) if weighing.name == "sparsemax" else np.sqrt(weights, out=weights)
    slope_sum = slope @ np.ones(slope.shape[1], slope.dtype)
    mean = np.einsum("ts,ts->t", slope, dweights) / np.where(slope_sum == 0, 1, slope_sum)
    dweights -= mean[:, None]
    dweights *= slope
