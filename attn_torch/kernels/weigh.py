"""Sigmoid, sparse and mixed-head attention in blocks of queries, computed in place.

A block is some queries of one head and the keys that they may see; of all heads, where maps mix these. Its scores stay
in a core's caches while they become weights, and then are gone; the backward pass computes them again. Every pass over
them counts: the textbook writes a dozen arrays of this size. Here the weights are made, in place,

- for a sigmoid by a sum with the offset and PyTorch's own function;
- for a softmax whose scores and weights are mixed by PyTorch's own function;
- for sparsemax and entmax by Newton's steps to the threshold, which never pass it from below, since the sum is convex
  (Michelot 1986). They start from the threshold of the largest of every few scores, which is never above that of
  all, since more scores only raise it; so two or three steps remain.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing
from attn_torch.attention.masks import hide_neg_inf, in_window
from attn_torch.ops import upcast, without_autocast

SCORES_PER_MAXIMUM = 16  # groups of this many scores are reduced to their largest
COARSE_STEP = 2.0**-7  # Newton's steps on the largest of each group stop below this length
# Keys in a block of a sigmoid, whose weights do not depend on other keys; products of nearly square blocks are fastest.
BLOCK_KEYS = 512


class HeadBlock(NamedTuple):
    """The heads of one sequence of the batch that a block has: one, or all where maps mix them."""

    batch_index: int
    heads: Span


BlockIndex = tuple[HeadBlock, Span, Span]  # which heads, queries and keys a block has


class WeighingFunction(Function):
    """The weighted sums of the values, `b t g v`, of q `b t g k`, k `b s g k` and v `b s g v`.

    Mask and bias are broadcastable to `b h t s`. Maps across the heads before and after the weighing, `g h` and `h g`,
    may be None.
    """

    @staticmethod
    def forward(ctx, q, k, v, mask, bias, w_mix_scores, w_mix_weights, weighing, band, blocks):
        ctx.save_for_backward(q, k, v, mask, bias, w_mix_scores, w_mix_weights)
        ctx.call = weighing, band, blocks
        return context_of(q, k, v, mask, bias, w_mix_scores, w_mix_weights, *ctx.call)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        inputs = *grad_outputs, *ctx.saved_tensors, *ctx.call, ctx.needs_input_grad[4]
        dq, dk, dv, dbias, *dmaps = WeighingGradients.apply(*inputs)
        return dq, dk, dv, None, dbias, *dmaps, None, None, None


class WeighingGradients(Function):
    """The gradients of a weighing, by `gradients_of`, without derivatives of their own."""

    @staticmethod
    def forward(ctx, *inputs):
        return gradients_of(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "attend: expected derivatives of the first order, got a second; set implementation='textbook' or "
            "return_weights=True"
        )


@without_autocast
def context_of(q: Tensor, *arguments: Any) -> Tensor:
    """The context, `b t g v`."""
    b, t, g, _ = q.shape
    context = q.new_zeros((b, g, t, arguments[1].shape[-1]))
    for block in weighed_blocks(q, *arguments):
        head_block, rows, _ = block.block_index
        positions_view(context, head_block, rows).baddbmm_(block.mixed_weights, block.v)
    return context.transpose(1, 2)


@without_autocast
def gradients_of(dcontext: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, *rest: Any) -> Any:
    """The gradients of q, k, v, of the bias where the last argument is True, and of the maps."""
    w_mix_scores, w_mix_weights, *call, needs_dbias = rest
    weighing, dq = call[0], torch.zeros_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
    # By width in memory, `b h k s`: with the short factor first a product takes 0.6 of the time of its transpose.
    dk, dv = (x.new_zeros(x.permute(0, 2, 3, 1).shape).mT for x in (k, v))
    dw_mix_scores, dw_mix_weights = (None if x is None else torch.zeros_like(x) for x in (w_mix_scores, w_mix_weights))
    dbias = torch.zeros_like(rank4(upcast(bias))) if needs_dbias else None
    scratch, dcontext = Scratch(q), dcontext.transpose(1, 2).contiguous()
    for block in weighed_blocks(q, k, v, mask, bias, w_mix_scores, w_mix_weights, *call):
        head_block, rows, columns = block.block_index
        dy = positions_view(dcontext, head_block, rows)
        positions_view(dv, head_block, columns).mT.baddbmm_(dy.mT, block.mixed_weights)
        dweights = dmixed_weights = torch.bmm(dy, block.v.mT, out=scratch("dmixed_weights", block.mixed_weights.shape))
        if dw_mix_weights is not None:
            dw_mix_weights += heads_as_rows(block.weights) @ heads_as_rows(dmixed_weights).mT
            dweights = mix(w_mix_weights, dmixed_weights, scratch("dweights", block.weights.shape))
        scores_vjp_(weighing, block.weights.flatten(0, 1), dweights.flatten(0, 1))
        dscores = dmixed_scores = dweights  # `scores_vjp_` wrote over them
        if dbias is not None:
            of_bias = block_view(dbias, block.block_index)
            of_bias += dmixed_scores.sum_to_size(of_bias.shape)
        if block.tanh is not None:
            tanh_slope = 1 - block.tanh * block.tanh
            dmixed_scores *= tanh_slope.masked_fill_(dmixed_scores == 0, 0.0)  # the slope at a hidden inf - inf is NaN
        if dw_mix_scores is not None:
            dw_mix_scores += heads_as_rows(block.scores) @ heads_as_rows(dmixed_scores).mT
            dscores = mix(w_mix_scores, dmixed_scores, scratch("dscores", block.scores.shape))
        positions_view(dq, head_block, rows).baddbmm_(dscores, block.k, alpha=weighing.scale)
        positions_view(dk, head_block, columns).mT.baddbmm_(block.q.mT, dscores)
    dq, dk, dv = (x.transpose(1, 2) for x in (dq, dk, dv))
    dbias = None if dbias is None else dbias.reshape(bias.shape).to(bias.dtype)
    return dq, dk, dv, dbias, dw_mix_scores, dw_mix_weights


class Scratch(dict[str, Tensor]):
    """Memory by name, used again for every block: fresh memory costs a page fault every 4 kB."""

    def __init__(self, like: Tensor) -> None:
        self.like = like

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        count = prod(shape)
        if name not in self or self[name].numel() < count:
            self[name] = self.like.new_empty(count)
        return self[name][:count].view(shape)


class WeighedBlock(NamedTuple):
    """Some queries of some heads of a sequence, and some of the keys that they may see.

    Attributes:
        block_index: the heads, and the spans of queries and keys.
        q, k, v: their arrays, `g t k`, `g s k` and `g s v`; the queries are scaled.
        scores, weights, mixed_weights: `g t s`, `h t s` and `g t s`, which the next block writes over; without maps all
            three are one array, which holds the weights.
        tanh: that of the softcap.
    """

    block_index: BlockIndex
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    mixed_weights: Tensor
    tanh: Tensor | None


def weighed_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    w_mix_scores: Tensor | None,
    w_mix_weights: Tensor | None,
    weighing: Weighing,
    band: Band,
    blocks: tuple[tuple[Span, Span], ...],
) -> Iterator[WeighedBlock]:
    """Every block of every head, or of all heads where they are mixed, with its weights, which the next block writes
    over.
    """
    mask, bias = rank4(mask), rank4(bias)
    (all_q, all_k, all_v), scratch = (x.transpose(1, 2).contiguous() for x in (q * weighing.scale, k, v)), Scratch(q)
    heads_per_block = max([1, *(n for x in (w_mix_scores, w_mix_weights) if x is not None for n in x.shape)])
    head_blocks = [
        HeadBlock(i, Span(j, j + heads_per_block))
        for i in range(q.shape[0])
        for j in range(0, q.shape[2], heads_per_block)
    ]
    for head_block, (rows, key_span) in product(head_blocks, blocks):
        block_weighing, width = weighing, BLOCK_KEYS if weighing.elementwise else key_span.length
        if weighing.elementwise and weighing.score_offset is None:
            allowed = allowed_pairs(mask, bias, band, (head_block, rows, key_span), q)
            count = key_counts(allowed, (rows.length, key_span.length), q).to(q.dtype)
            block_weighing = replace(weighing, score_offset=-torch.log(count.clamp_(min=1)))
        for columns in (Span(i, min(i + width, key_span.stop)) for i in range(key_span.start, key_span.stop, width)):
            index = head_block, rows, columns
            part_q, part_k, part_v = (
                positions_view(all_q, head_block, rows),
                positions_view(all_k, head_block, columns),
                positions_view(all_v, head_block, columns),
            )
            shape, tanh = (len(part_q), rows.length, columns.length), None
            scores = mixed_scores = torch.bmm(part_q, part_k.mT, out=scratch("scores", shape))
            if w_mix_scores is not None:
                shape = w_mix_scores.shape[1], *shape[1:]
                mixed_scores = mix(w_mix_scores.mT, scores, scratch("mixed_scores", shape))
            if weighing.softcap is not None:
                tanh = mixed_scores.div_(weighing.softcap).tanh_().clone()
                mixed_scores.mul_(weighing.softcap)
            if bias is not None:
                mixed_scores.add_(upcast(block_view(bias, index)))
            allowed = allowed_pairs(mask, bias, band, index, q)
            allowed = allowed if allowed is None else allowed.expand_as(mixed_scores).flatten(0, 1)
            weigh_(block_weighing, mixed_scores.flatten(0, 1), allowed)
            mixed_weights = weights = mixed_scores
            if w_mix_weights is not None:
                mixed_weights = mix(
                    w_mix_weights.mT, weights, scratch("mixed_weights", (w_mix_weights.shape[1], *shape[1:]))
                )
            yield WeighedBlock(index, part_q, part_k, part_v, scores, weights, mixed_weights, tanh)


def allowed_pairs(
    mask: Tensor | None, bias: Tensor | None, band: Band, index: BlockIndex, like: Tensor
) -> Tensor | None:
    """Which queries of a block see which of its keys, broadcastable to `h t s`; None: each sees all."""
    allowed = hide_neg_inf(*(None if x is None else block_view(x, index) for x in (mask, bias)))
    _, rows, columns = index
    if band.covers(rows, columns):
        return allowed
    query_positions, key_positions = (torch.arange(*span, device=like.device)[None] for span in (rows, columns))
    in_band = in_window(query_positions + (band.s - band.t), key_positions, band.left, band.right)
    return in_band if allowed is None else in_band & allowed


def positions_view(x: Tensor, head_block: HeadBlock, positions: Span) -> Tensor:
    """The view `n t k` of some heads and positions of an array `b h t k`."""
    batch_index, heads = head_block
    return x[batch_index, slice(*heads), slice(*positions)]


def rank4(x: Any) -> Any:
    """An array broadcastable to the scores with four axes; None stays None."""
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def block_view(x: Tensor, index: BlockIndex) -> Tensor:
    """A block's part `h t s` of an array `b h t s`; an axis of length 1 serves all."""
    (i, heads), rows, columns = index
    spans = Span(i, i + 1), heads, rows, columns
    return x[tuple(slice(*span) if n > 1 else slice(None) for n, span in zip(x.shape, spans, strict=True))][0]


def heads_as_rows(x: Tensor) -> Tensor:
    """Scores `h t s` as a row for each head."""
    return x.flatten(1)


def mix(matrix: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """A map across heads: a matrix `h g` times x, `g t s` with heads as rows, is `h t s`."""
    torch.mm(matrix, heads_as_rows(x), out=heads_as_rows(out))
    return out


def key_counts(allowed: Tensor | None, shape: tuple[int, int], like: Tensor) -> Tensor:
    """How many keys each query of a head sees, `t 1`; `1 1` where each sees all."""
    if allowed is None:
        return like.new_full((1, 1), shape[1])
    return allowed.expand(1, *shape)[0].sum(-1, keepdim=True)


# In place -------------------------------------------------------------------------------------------------------------


def weigh_(weighing: Weighing, scores: Tensor, allowed: Tensor | None) -> None:
    """Turn scores `t s` into weights, in place; a sigmoid's offset is a number or a column."""
    if weighing.name == "softmax":
        softmax_(scores, allowed)
        return
    if weighing.name != "sigmoid":
        sparse_weights_(scores, allowed, 1 if weighing.name == "sparsemax" else 2)
        return
    scores.add_(weighing.score_offset).sigmoid_()
    if allowed is not None:
        scores.masked_fill_(~allowed, 0.0)


def softmax_(scores: Tensor, allowed: Tensor | None) -> None:
    """A softmax, in place: 0 where nothing is allowed, NaN where what is allowed is all -inf."""
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    torch.softmax(scores, -1, out=scores)
    if allowed is not None:
        scores.masked_fill_(~allowed.any(1, keepdim=True), 0.0)


def sparse_weights_(scores: Tensor, allowed: Tensor | None, power: int) -> None:
    """Sparsemax (power 1) or 1.5-entmax (power 2), in place: ((score - tau) / power)^power where it is positive, with
    tau such that they add up to 1.
    """
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    t, s = scores.shape
    num_grouped = s - s % SCORES_PER_MAXIMUM
    tops = torch.cat(
        [scores[:, :num_grouped].unflatten(1, (SCORES_PER_MAXIMUM, -1)).amax(1), scores[:, num_grouped:]], 1
    )
    top = tops.amax(1, keepdim=True)
    all_neg_inf = top == -torch.inf
    shift = top.masked_fill(all_neg_inf, 0.0)
    tau = torch.full_like(top, -power)  # where the largest alone, which is 0 now, weighs 1
    for z, tolerance in ((tops.sub_(shift), COARSE_STEP), (scores.sub_(shift), torch.finfo(scores.dtype).eps)):
        tau = threshold_from_below(z, tau, power, tolerance)
    scores.sub_(tau).clamp_(min=0)
    if power == 2:
        scores.square_().mul_(0.25)
    undefined = ~(top < torch.inf)
    undefined |= all_neg_inf if allowed is None else all_neg_inf & allowed.expand_as(scores).any(1, keepdim=True)
    if undefined.any():
        scores.masked_fill_(undefined, torch.nan)


def threshold_from_below(z: Tensor, tau: Tensor, power: int, tolerance: float) -> Tensor:
    """The tau of each row for which the sum of max(z - tau, 0)^power is power^power; the argument `tau` is a lower
    bound of it.

    Steps end with one that is not longer than `tolerance`.
    """
    above = torch.empty_like(z)
    while True:
        torch.sub(z, tau, out=above).clamp_(min=0)
        if power == 1:
            total, slope = above.sum(1, keepdim=True), above.sign_().sum(1, keepdim=True)
        else:
            slope, total = 2 * above.sum(1, keepdim=True), above.square_().sum(1, keepdim=True)
        next_tau = tau + (total - power**power) / slope.masked_fill_(slope == 0, 1.0)
        if not (next_tau > tau + tolerance).any():
            return torch.maximum(tau, next_tau)
        tau = torch.maximum(tau, next_tau)


def scores_vjp_(weighing: Weighing, weights: Tensor, dweights: Tensor) -> None:
    """Turn the gradient of the weights `t s` into that of the scores, in place; the weights are used up."""
    if weighing.name == "sigmoid":  # p (1 - p)
        dweights.mul_(weights).addcmul_(dweights, weights, value=-1)
        return
    # slope (dp - mean), where the mean of dp over the row is weighted by the slopes. The slope of a weight is p in a
    # softmax, and p^(2 - alpha) on the support of sparse weights: 1 or the root. `einsum` would take ten times as long.
    slope, total = weights, 1.0
    if weighing.name != "softmax":
        slope = weights.sign_() if weighing.name == "sparsemax" else weights.sqrt_()
        total = slope.sum(1, keepdim=True)
        total.masked_fill_(total == 0, 1.0)
    mean = dweights.mul_(slope).sum(1, keepdim=True) / total
    dweights.addcmul_(slope, mean, value=-1)
