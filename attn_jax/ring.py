"""Ring attention: shards of keys travel around a ring of shards of queries until each has met each."""

from math import inf, sqrt
from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.masks import any_visible, broadcast_mask, zero_unseen
from attn_jax.frame.call import AttentionCall, StateOptions
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
    Array,
    amax_detached,
    arange,
    concatenate,
    einsum,
    exp,
    maximum,
    record,
    scan,
    where,
    zeros,
)
from attn_np.contract.ring import Config


def to_shards(x: Array, num_shards: int) -> Array:
    """b s ... -> b n c ...: one shard for each device; the last ones are padded with zeros, or with False."""
    size = max(1, -(-x.shape[1] // num_shards))
    padding = zeros((x.shape[0], num_shards * size - x.shape[1], *x.shape[2:]), x)
    return concatenate([x, padding], 1).reshape(x.shape[0], num_shards, size, *x.shape[2:])


def from_shards(x: Array, length: int) -> Array:
    """b n c ... -> b s ...: the inverse of `to_shards`, without the padding."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :length]


def to_next_device(x: Array) -> Array:
    """The shards as each device has them after it has sent its own to the next one, the last device to the first."""
    return concatenate([x[:, -1:], x[:, :-1]], 1)


def masks_by_turn(allowed: Array, num_shards: int) -> Array:
    """b t s -> b i n t s: the mask between each device's queries and the keys that it holds in turn i."""
    pairs = to_shards(to_shards(allowed, num_shards).swapaxes(1, 3), num_shards).swapaxes(2, 4)  # b n' n t s
    device, turn = arange(num_shards, allowed)[None, :], arange(num_shards, allowed)[:, None]
    return pairs[:, (device - turn) % num_shards, device]


class RingAttention(Layer[Config]):
    """Shards of keys travel around a ring of shards of queries until each has met each."""

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
        q_shards = to_shards(q, c.shards)

        def add_shard(carry, xs):
            (k, v), has_key, top, total, sums = carry
            (visible,) = xs
            scores = where(visible, einsum("bntk,bnsk->bnts", q_shards, k) * scale, -inf)
            has_key = has_key | any_visible("bnts->bnt", visible)
            new_top = maximum(top, amax_detached(scores, 3))
            # A query without a visible key so far has no largest score to subtract.
            rescale = exp(top - where(has_key, new_top, 0.0))
            e = exp(scores - where(has_key, new_top, 0.0)[..., None])
            total = total * rescale + e.sum(3)
            sums = sums * rescale[..., None] + einsum("bnts,bnsv->bntv", e, v)
            return ((to_next_device(k), to_next_device(v)), has_key, new_top, total, sums), (new_top, total, sums)

        zero = zeros(q_shards.shape[:3], q)
        start = zero > 0, zero - inf, zero, zeros((*q_shards.shape[:3], v.shape[2]), q)
        carry = ((to_shards(k, c.shards), to_shards(v, c.shards)), *start)
        names = ("running_top", "running_total", "running_sums")
        (_, has_key, top, total, sums), _ = scan(
            add_shard, carry, (masks_by_turn(allowed, c.shards),), names=names, tape=tape
        )
        # A query without keys gets 0 / 1; one whose scores are all -inf has overflowed, and its sums are NaN.
        top, total = record(tape, top=where(has_key, top, 0.0), total=where(has_key, total, 1.0))
        return call.end(from_shards(sums / total[..., None], t))
