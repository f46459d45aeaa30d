"""Weights that are no softmax, one block of rows after the other, in place from one matrix product to the other.

A block is some queries of one head and the keys that they may see. Its scores stay in a core's caches while they become
weights, and then are gone; the backward pass computes them again. Every pass over them counts: what the textbook says
in a dozen arrays of this size is here

- for a sigmoid one function in place;
- for sparsemax and entmax Newton's steps to the threshold, which never pass it from below, since the sum is convex
  (Michelot 1986). They begin where the largest of every few scores alone would have it, which is not above the
  threshold of all, since more scores only raise it; so two or three steps remain.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing
from attn_torch._masks import hide_by_bias, in_window
from attn_torch._ops import upcast, without_autocast

GROUP = 16  # scores of which the largest is looked for
NEAR = 2.0**-7  # steps that are shorter are not made with these


class WeighedRows(Function):
    """The weighted sums of the values, `b t h v`, of q `b t h k`, k `b s h k` and v `b s h v`.

    Mask and bias are broadcastable to `b h t s`.
    """

    @staticmethod
    def forward(ctx, q, k, v, mask, bias, weighing, band, blocks):
        ctx.save_for_backward(q, k, v, mask, bias)
        ctx.call = weighing, band, blocks
        return context_of(q, k, v, mask, bias, *ctx.call)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        inputs = *grad_outputs, *ctx.saved_tensors, *ctx.call, ctx.needs_input_grad[4]
        dq, dk, dv, dbias = RowGradients.apply(*inputs)
        return dq, dk, dv, None, dbias, None, None, None


class RowGradients(Function):
    """`gradients_of`, which has no derivatives of its own."""

    @staticmethod
    def forward(ctx, *inputs):
        return gradients_of(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "attend: expected derivatives of the first order, got a second; set implementation='textbook'"
        )


@without_autocast
def context_of(q: Tensor, *arguments: Any) -> Tensor:
    """The context, `b t h v`."""
    context = q.new_empty((*q.shape[:3], arguments[1].shape[-1]))
    for block in weighed_blocks(q, *arguments):
        context[block.queries] = block.weights @ block.v
    return context


@without_autocast
def gradients_of(dcontext: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, *rest: Any) -> Any:
    """The gradients of q, k, v and, where the last argument is True, the bias."""
    *call, with_bias = rest
    scale, dq, dk, dv = call[0].scale, torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dbias = torch.zeros_like(rank4(upcast(bias))) if with_bias else None
    for block in weighed_blocks(q, k, v, mask, bias, *call):
        dy, weights = dcontext[block.queries], block.weights
        dv[block.keys] += weights.mT @ dy
        dscores = dy @ block.v.mT
        scores_vjp_(call[0], weights, dscores)
        if dbias is not None:
            part = of_block(dbias, block)
            part += dscores.sum_to_size(part.shape)
        if block.tanh is not None:
            slope = 1 - block.tanh * block.tanh
            dscores *= slope.masked_fill_(dscores == 0, 0.0)  # that of a hidden inf - inf is NaN
        dq[block.queries] = (dscores @ block.k) * scale
        dk[block.keys] += dscores.mT @ block.q
    return dq, dk, dv, None if dbias is None else dbias.reshape(bias.shape).to(bias.dtype)


class WeighedBlock(NamedTuple):
    """Some queries of a head and the keys that they may see.

    Attributes:
        rows, columns: which they are.
        queries, keys: their index in an array `b t h k` and `b s h k`.
        q, k, v: theirs; the queries are scaled.
        weights: `t s`, which the next block writes over.
        tanh: that of the softcap.
    """

    rows: Span
    columns: Span
    queries: tuple[Any, ...]
    keys: tuple[Any, ...]
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    tanh: Tensor | None


def weighed_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    weighing: Weighing,
    band: Band,
    blocks: tuple[tuple[Span, Span], ...],
) -> Iterator[WeighedBlock]:
    """Every block of every head with its weights, each until the next one is asked for."""
    mask, bias = rank4(mask), rank4(bias)
    by_head = [x.transpose(1, 2).contiguous() for x in (q * weighing.scale, k, v)]
    memory = q.new_empty(max(rows.length * columns.length for rows, columns in blocks))
    for i, j, (rows, columns) in [(i, j, n) for i in range(q.shape[0]) for j in range(q.shape[2]) for n in blocks]:
        queries, keys = (i, slice(*rows), j), (i, slice(*columns), j)
        part_q, part_k, part_v = (
            x[i, j, slice(*span)] for x, span in zip(by_head, (rows, columns, columns), strict=True)
        )
        scores = memory[: rows.length * columns.length].view(rows.length, columns.length)
        block = WeighedBlock(rows, columns, queries, keys, part_q, part_k, part_v, scores, None)
        torch.mm(part_q, part_k.mT, out=scores)
        if weighing.softcap is not None:
            block = block._replace(tanh=scores.div_(weighing.softcap).tanh_().clone())
            scores.mul_(weighing.softcap)
        part_mask, part_bias = (None if x is None else of_block(x, block) for x in (mask, bias))
        allowed = hide_by_bias(part_mask, part_bias)
        if part_bias is not None:
            scores.add_(upcast(part_bias))
        if not band.covers(rows, columns):
            at, to = (torch.arange(*span, device=q.device)[None] for span in (rows, columns))
            in_band = in_window(at + (band.s - band.t), to, band.left, band.right)[0]
            allowed = in_band if allowed is None else in_band & allowed
        weigh_(weighing, scores, allowed)
        yield block


def rank4(x: Any) -> Any:
    """An array broadcastable to the scores with four axes; None stays None."""
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def of_block(x: Tensor, block: WeighedBlock) -> Tensor:
    """A block's part `t s` of an array `b h t s`; an axis of length 1 serves all."""
    (i, _, j), spans = block.queries, (block.rows, block.columns)
    x = x[i if x.shape[0] > 1 else 0, j if x.shape[1] > 1 else 0]
    return x[tuple(slice(*span) if n > 1 else slice(None) for n, span in zip(x.shape, spans, strict=True))]


# In place -------------------------------------------------------------------------------------------------------------


def weigh_(weighing: Weighing, scores: Tensor, allowed: Tensor | None) -> None:
    """Turn scores `t s` into weights, in place."""
    if weighing.name != "sigmoid":
        sparse_weights_(scores, allowed, 1 if weighing.name == "sparsemax" else 2)
        return
    offset: Any = weighing.score_offset
    if offset is None:
        seen = scores.new_full((1,), scores.shape[1]) if allowed is None else allowed.expand_as(scores).sum(1)
        offset = -torch.log(seen.to(scores.dtype).clamp_(min=1))[..., None]
    scores.add_(offset).sigmoid_()
    if allowed is not None:
        scores.masked_fill_(~allowed, 0.0)


def sparse_weights_(scores: Tensor, allowed: Tensor | None, power: int) -> None:
    """Sparsemax (power 1) or 1.5-entmax (power 2), in place: ((score - tau) / power)^power where it is positive, with
    tau such that they add up to 1.
    """
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    t, s = scores.shape
    even = s - s % GROUP
    tops = torch.cat([scores[:, :even].unflatten(1, (GROUP, -1)).amax(1), scores[:, even:]], 1)
    top = tops.amax(1, keepdim=True)
    nothing = top == -torch.inf
    shift = top.masked_fill(nothing, 0.0)
    tau = torch.full_like(top, -power)  # where the largest alone, which is 0 now, weighs 1
    for z, enough in ((tops.sub_(shift), NEAR), (scores.sub_(shift), torch.finfo(scores.dtype).eps)):
        tau = threshold_from_below(z, tau, power, enough)
    scores.sub_(tau).clamp_(min=0)
    if power == 2:
        scores.square_().mul_(0.25)
    undefined = ~(top < torch.inf)
    undefined |= nothing if allowed is None else nothing & allowed.expand_as(scores).any(1, keepdim=True)
    if undefined.any():
        scores.masked_fill_(undefined, torch.nan)


def threshold_from_below(z: Tensor, tau: Tensor, power: int, enough: float) -> Tensor:
    """The tau of each row for which the sum of max(z - tau, 0)^power is power^power, from one below it.

    Steps end with one that is not longer than `enough`.
    """
    above = torch.empty_like(z)
    while True:
        torch.sub(z, tau, out=above).clamp_(min=0)
        if power == 1:
            total, slope = above.sum(1, keepdim=True), above.sign_().sum(1, keepdim=True)
        else:
            slope, total = 2 * above.sum(1, keepdim=True), above.square_().sum(1, keepdim=True)
        better = tau + (total - power**power) / slope.masked_fill_(slope == 0, 1.0)
        if not (better > tau + enough).any():
            return torch.maximum(tau, better)
        tau = torch.maximum(tau, better)


def scores_vjp_(weighing: Weighing, weights: Tensor, dweights: Tensor) -> None:
    """Turn the gradient of the weights `t s` into that of the scores, in place; the weights are used up."""
    if weighing.name == "sigmoid":  # p (1 - p)
        dweights.mul_(weights).mul_(weights.neg_().add_(1))
        return
    # The slope of a weight is p^(2 - alpha): 1 or its root on the support. The threshold moves by the mean of dp.
    slope = weights.sign_() if weighing.name == "sparsemax" else weights.sqrt_()
    slopes = slope.sum(1)
    mean = torch.einsum("ts,ts->t", slope, dweights) / torch.where(slopes == 0, 1.0, slopes)
    dweights.sub_(mean[:, None]).mul_(slope)
