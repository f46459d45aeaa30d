"""Weights that are no softmax, one block of rows after the other, in place from one matrix product to the other.

A block is some queries of one head and the keys that they may see. Its scores stay in a core's caches while they become
weights, and then are gone; the backward pass computes them again. Every pass over them counts: what the textbook says
in a dozen arrays of this size is here

- for a sigmoid an exponential, a sum with 1 and a reciprocal;
- for sparsemax and entmax Newton's steps to the threshold, which never pass it from below, since the sum is convex
  (Michelot 1986). They begin where the largest of every few scores alone would have it, which is not above the
  threshold of all, since more scores only raise it. Few scores lie above that, and the remaining steps are for these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from attn_np._kernels import Scratch, in_threads
from attn_np._masks import hide_by_bias, in_window
from attn_np._ops import Array, upcast
from attn_np._vjp import sum_to
from attn_np.contract._band import Band, Span
from attn_np.contract._weighing import Weighing

GROUP = 16  # scores of which the largest is looked for
NEAR = 2.0**-7  # steps that are shorter are not made with these


@dataclass(frozen=True)
class Weighed:
    """A call: its arrays `b t h k`, `b s h k` and `b s h v`, mask and bias broadcastable to `b h t s`."""

    weighing: Weighing
    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    band: Band
    blocks: tuple[tuple[Span, Span], ...]

    def context(self) -> Array:
        """The weighted sums of the values, `b t h v`."""
        context = np.empty((*self.q.shape[:3], self.v.shape[-1]), self.q.dtype)

        def attend_head(head: tuple[int, int]) -> None:
            for block in self.of_head(head, Scratch()):
                np.matmul(block.weights, block.v, out=context[block.queries])

        with np.errstate(invalid="ignore", over="ignore"):  # hidden numbers may overflow or be NaN
            in_threads(attend_head, lambda threads: self.heads)
        return context

    def vjp(self, dcontext: Array) -> dict[str, Array | None]:
        """The gradients of q, k, v and the bias."""
        dq, dk, dv = (np.zeros_like(x) for x in (self.q, self.k, self.v))
        bias = rank4(self.bias)
        dbias = None if bias is None else np.zeros(bias.shape, self.q.dtype)

        def part_of_bias(head: tuple[int, int]) -> tuple[int, ...]:
            return head if bias is None else tuple(i if n > 1 else 0 for i, n in zip(head, bias.shape, strict=False))

        # Heads that share a bias are done in one thread, which adds up its gradient.
        heads = [list(group) for _, group in groupby(sorted(self.heads, key=part_of_bias), part_of_bias)]

        def attend_heads_vjp(heads: list[tuple[int, int]]) -> None:
            scratch = Scratch()
            for head in heads:
                for block in self.of_head(head, scratch):
                    dy, weights = dcontext[block.queries], block.weights
                    dv[block.keys] += weights.T @ dy
                    dscores = np.matmul(dy, block.v.T, out=scratch("dscores", weights.shape, weights.dtype))
                    scores_vjp_(self.weighing, weights, dscores)
                    if dbias is not None:
                        own = dbias[part_of_bias(head)]
                        part = own[index(own, block.rows, block.columns)]
                        part += sum_to(dscores, part.shape)
                    if block.tanh is not None:
                        slope = 1 - block.tanh * block.tanh
                        np.copyto(slope, 0, where=dscores == 0)  # that of a hidden inf - inf is NaN
                        dscores *= slope
                    dq[block.queries] = (dscores @ block.k) * self.weighing.scale
                    dk[block.keys] += dscores.T @ block.q

        with np.errstate(invalid="ignore", over="ignore"):
            in_threads(attend_heads_vjp, lambda threads: heads)
        return {"q": dq, "k": dk, "v": dv, "bias": None if dbias is None else dbias.reshape(self.bias.shape)}  # type: ignore[union-attr]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every head of every sequence."""
        return [(i, j) for i in range(self.q.shape[0]) for j in range(self.q.shape[2])]

    def of_head(self, head: tuple[int, int], scratch: Scratch) -> Iterator["WeighedBlock"]:
        """The blocks of a head with their weights, each until the next one is asked for."""
        i, j = head
        # In one order in memory, and keys as columns, products take two thirds of the time.
        all_q = self.q[i, :, j] * self.q.dtype.type(self.weighing.scale)
        all_k, all_v, columns_of_k = (
            np.ascontiguousarray(x) for x in (self.k[i, :, j], self.v[i, :, j], self.k[i, :, j].T)
        )
        for rows, columns in self.blocks:
            queries, keys = np.s_[i, slice(*rows), j], np.s_[i, slice(*columns), j]
            q, k, v = all_q[slice(*rows)], all_k[slice(*columns)], all_v[slice(*columns)]
            scores = np.matmul(
                q, columns_of_k[:, slice(*columns)], out=scratch("scores", (rows.length, columns.length), q.dtype)
            )
            tanh = None
            if self.weighing.softcap is not None:
                tanh = np.tanh(np.divide(scores, self.weighing.softcap, out=scores), out=scores).copy()
                scores *= self.weighing.softcap
            mask, bias = (None if x is None else of_head(rank4(x), head, rows, columns) for x in (self.mask, self.bias))
            if bias is not None:
                scores += upcast(bias)
            allowed = hide_by_bias(mask, bias)
            if not self.band.covers(rows, columns):
                positions = np.arange(*rows)[None] + (self.band.s - self.band.t), np.arange(*columns)[None]
                in_band = in_window(*positions, self.band.left, self.band.right)[0]
                allowed = in_band if allowed is None else in_band & allowed
            weigh_(self.weighing, scores, allowed)
            yield WeighedBlock(rows, columns, queries, keys, q, k, v, scores, tanh)


@dataclass(frozen=True)
class WeighedBlock:
    """Some queries of a head and the keys that they may see.

    Attributes:
        rows, columns: which they are.
        queries, keys: their index in an array `b t h k` and `b s h k`.
        q, k, v: theirs; the queries are scaled.
        weights: `t s`.
        tanh: that of the softcap.
    """

    rows: Span
    columns: Span
    queries: tuple[Any, ...]
    keys: tuple[Any, ...]
    q: Array
    k: Array
    v: Array
    weights: Array
    tanh: Array | None


def rank4(x: Any) -> Any:
    """An array broadcastable to the scores with four axes; None stays None."""
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape)


def index(x: Array, rows: Span, columns: Span) -> Any:
    """The index of a block in an array `t s`; an axis of length 1 serves all."""
    return tuple(slice(*span) if n > 1 else slice(None) for n, span in zip(x.shape, (rows, columns), strict=True))


def of_head(x: Array, head: tuple[int, int], rows: Span, columns: Span) -> Array:
    """A block of an array `b h t s`, of one head; an axis of length 1 serves all."""
    x = x[tuple(i if n > 1 else 0 for i, n in zip(head, x.shape, strict=False))]
    return x[index(x, rows, columns)]


# In place -------------------------------------------------------------------------------------------------------------


def weigh_(weighing: Weighing, scores: Array, allowed: Array | None) -> None:
    """Turn scores `t s` into weights, in place."""
    if weighing.name != "sigmoid":
        sparse_weights_(scores, allowed, 1 if weighing.name == "sparsemax" else 2)
        return
    offset: Any = weighing.score_offset
    if offset is None:
        seen = np.asarray(scores.shape[1]) if allowed is None else np.broadcast_to(allowed, scores.shape).sum(1)
        offset = -np.log(np.maximum(seen, 1).astype(scores.dtype))[..., None]
    np.subtract(-offset, scores, out=scores, dtype=scores.dtype)
    np.exp(scores, out=scores)  # inf where a weight is too small to be told from 0
    scores += 1
    np.reciprocal(scores, out=scores)
    if allowed is not None:
        np.copyto(scores, 0, where=~allowed)


def sparse_weights_(scores: Array, allowed: Array | None, power: int) -> None:
    """Sparsemax (power 1) or 1.5-entmax (power 2), in place: ((score - tau) / power)^power where it is positive, with
    tau such that they add up to 1.
    """
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    t, s = scores.shape
    even = s - s % GROUP
    tops = np.concatenate([scores[:, :even].reshape(t, GROUP, -1).max(1), scores[:, even:]], 1)
    top = tops.max(1, keepdims=True)
    nothing = top == -np.inf
    shift = np.where(nothing, 0, top)
    tau = np.full_like(top, -power)  # where the largest alone, which is 0 then, weighs 1
    tau = threshold_from_below(tops - shift, tau, power, NEAR)
    eps = float(np.finfo(scores.dtype).eps)
    margin = 4 * eps * (np.abs(shift) + power)  # for the roundings of this comparison
    at = np.flatnonzero(scores > shift + tau - margin)
    row = at // s
    count = np.bincount(row, minlength=t)
    place = np.arange(len(at)) - (np.cumsum(count) - count)[row]
    few = np.full((t, max(1, count.max())), -np.inf, scores.dtype)
    few[row, place] = scores.reshape(-1)[at] - shift[row, 0]
    weights = np.maximum(few - threshold_from_below(few, tau, power, eps), 0)
    scores.fill(0)
    scores.reshape(-1)[at] = (weights if power == 1 else weights * weights * 0.25)[row, place]
    undefined = ~(top < np.inf)
    undefined |= nothing if allowed is None else nothing & np.any(allowed, axis=1, keepdims=True)
    if undefined.any():
        np.copyto(scores, np.nan, where=undefined)


def threshold_from_below(z: Array, tau: Array, power: int, enough: float) -> Array:
    """The tau of each row for which the sum of max(z - tau, 0)^power is power^power, from one below it.

    Steps end with one that is not longer than `enough`.
    """
    above, ones = np.empty_like(z), np.ones((z.shape[1], 1), z.dtype)
    while True:
        np.maximum(np.subtract(z, tau, out=above), 0, out=above)
        if power == 1:
            total, slope = above @ ones, np.sign(above, out=above) @ ones
        else:
            slope, total = 2 * (above @ ones), np.square(above, out=above) @ ones
        better = tau + (total - power**power) / np.where(slope == 0, 1, slope)
        if not (better > tau + enough).any():
            return np.maximum(tau, better)
        tau = np.maximum(tau, better)


def scores_vjp_(weighing: Weighing, weights: Array, dweights: Array) -> None:
    """Turn the gradient of the weights `t s` into that of the scores, in place; the weights are used up."""
    if weighing.name == "sigmoid":  # p (1 - p)
        dweights *= weights
        dweights *= np.subtract(1, weights, out=weights)
        return
    # The slope of a weight is p^(2 - alpha): 1 or its root on the support. The threshold moves by the mean of dp.
    slope = np.sign(weights, out=weights) if weighing.name == "sparsemax" else np.sqrt(weights, out=weights)
    slopes = slope @ np.ones(slope.shape[1], slope.dtype)
    mean = np.einsum("ts,ts->t", slope, dweights) / np.where(slopes == 0, 1, slopes)
    dweights -= mean[:, None]
    dweights *= slope
