"""Blockwise attention: the softmax as a running sum over blocks of keys; the weights are never stored."""

from math import inf, sqrt
from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.masks import any_visible, broadcast_mask, zero_unseen
from attn_jax.frame.call import AttentionCall, StateOptions
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
    Array,
    amax_detached,
    concatenate,
    einsum,
    exp,
    maximum,
    record,
    scan,
    where,
    zeros,
)
from attn_np.contract.blockwise import Config


def to_blocks(x: Array, size: int) -> Array:
    """b s ... -> b n c ...: the last block is padded with zeros, or with False."""
    num_blocks = max(1, -(-x.shape[1] // size))
    padding = zeros((x.shape[0], num_blocks * size - x.shape[1], *x.shape[2:]), x)
    return concatenate([x, padding], 1).reshape(x.shape[0], num_blocks, size, *x.shape[2:])


class BlockwiseAttention(Layer[Config]):
    """The softmax as a running sum over blocks of keys; the weights are never stored."""

    def __call__(
        self,
        query: Float[Array, "b t k"],
        key: Float[Array, "b s k"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        **options: Unpack[StateOptions],
    ) -> Array:
        call = AttentionCall(self, query, key, value, **options)
        c, tape = self.config, call.tape
        q, k, v = call.inputs(projected=False)
        k, v = call.with_cached(k, v)
        (b, t, width), s = q.shape, k.shape[1]
        scale = 1 / sqrt(width) if c.scale is None else c.scale
        mask = call.allowed(t, s, like=q)
        allowed = broadcast_mask(mask, (b, t, s), q)
        q = zero_unseen("bts->btk", mask, q)
        k, v = zero_unseen("bts->bsk", mask, k), zero_unseen("bts->bsv", mask, v)
        q, k, v, allowed = record(tape, q=q, k=k, v=v, allowed=allowed)

        def add_block(carry, xs, q):
            has_key, top, total, sums = carry
            k, v, visible = xs
            scores = where(visible, einsum("btk,bck->bct", q, k) * scale, -inf)
            has_key = has_key | any_visible("bct->bt", visible)
            new_top = maximum(top, amax_detached(scores, 1))
            # A query without a visible key so far has no largest score to subtract.
            rescale = exp(top - where(has_key, new_top, 0.0))
            e = exp(scores - where(has_key, new_top, 0.0)[:, None])
            total = total * rescale + e.sum(1)
            sums = sums * rescale[..., None] + einsum("bct,bcv->btv", e, v)
            return (has_key, new_top, total, sums), (new_top, total, sums)

        zero = zeros((b, t), q)
        carry = zero > 0, zero - inf, zero, zeros((b, t, v.shape[2]), q)
        xs = to_blocks(k, c.block_size), to_blocks(v, c.block_size), to_blocks(allowed.swapaxes(1, 2), c.block_size)
        names = ("running_top", "running_total", "running_sums")
        (has_key, top, total, sums), _ = scan(add_block, carry, xs, names=names, tape=tape, recompute_with=(q,))
        # A query without keys gets 0 / 1; one whose scores are all -inf has overflowed, and its sums are NaN.
        top, total = record(tape, top=where(has_key, top, 0.0), total=where(has_key, total, 1.0))
        return call.end(sums / total[..., None])
