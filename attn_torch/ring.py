"""Ring attention: shards of keys travel around a ring of shards of queries until each has met each."""

from math import inf, sqrt

from jaxtyping import Bool, Float

from attn_np.contract.ring import Config
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, inputs, output
from attn_torch._masks import any_visible, attention_mask, zero_unseen
from attn_torch._ops import (
    Array,
    Tape,
    amax,
    arange,
    broadcast_to,
    concatenate,
    dtype_name,
    einsum,
    exp,
    maximum,
    record,
    scan,
    where,
    zeros,
)


def split(x: Array, count: int) -> Array:
    """b s ... -> b n c ...: as many shards as there are places; the last ones are filled up with zeros, or False."""
    size = max(1, -(-x.shape[1] // count))
    more = zeros((x.shape[0], count * size - x.shape[1], *x.shape[2:]), x)
    return concatenate([x, more], 1).reshape(x.shape[0], count, size, *x.shape[2:])


def joined(x: Array, length: int) -> Array:
    """b n c ... -> b s ...: without what was filled up."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :length]


def hand_on(x: Array) -> Array:
    """Every place gives what it holds to the next one, the last to the first."""
    return concatenate([x[:, -1:], x[:, :-1]], 1)


def meetings(allowed: Array, count: int) -> Array:
    """b t s -> b i n t s: who sees whom when the shard of queries at each place meets its keys of step i."""
    pairs = split(split(allowed, count).swapaxes(1, 3), count).swapaxes(2, 4)  # b n' n t s
    place, step = arange(count, allowed)[None, :], arange(count, allowed)[:, None]
    return pairs[:, (place - step) % count, place]


class RingAttention(Layer[Config]):
    """Shards of keys travel around a ring of shards of queries until each has met each."""

    def forward(
        self,
        query: Float[Array, "b t k"],
        key: Float[Array, "b s k"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        step: DecodeStep | None = None,
    ) -> Array:
        self.check(query=query, key=key, value=value, mask=mask)
        c, dtype = self.config, dtype_name(query)
        q, k, v = inputs(tape, "bts", query, key, value, step=step)
        k, v = append(step, k=k, v=v)
        (b, t, width), s = q.shape, k.shape[1]
        factor = 1 / sqrt(width) if c.scale is None else c.scale
        every = arange(s, q)[None, None, :] >= 0
        near = attention_mask(mask, t, s, like=q, causal=c.causal, step=step)
        allowed = broadcast_to(every if near is None else near, (b, t, s))
        q = zero_unseen("bts->btk", allowed, q)
        k, v = zero_unseen("bts->bsk", allowed, k), zero_unseen("bts->bsv", allowed, v)
        q, k, v, allowed = record(tape, q=q, k=k, v=v, allowed=allowed)
        own = split(q, c.shards)

        def step(carry, xs):
            (k, v), some, top, total, sums = carry
            (near,) = xs
            scores = where(near, einsum("bntk,bnsk->bnts", own, k) * factor, -inf)
            some = some | any_visible("bnts->bnt", near)
            higher = maximum(top, amax(scores, 3))
            # A query that has seen no key yet has no largest score to subtract.
            rest = exp(top - where(some, higher, 0.0))
            e = exp(scores - where(some, higher, 0.0)[..., None])
            total = total * rest + e.sum(3)
            sums = sums * rest[..., None] + einsum("bnts,bnsv->bntv", e, v)
            return ((hand_on(k), hand_on(v)), some, higher, total, sums), (higher, total, sums)

        none = zeros(own.shape[:3], q)
        start = none > 0, none - inf, none, zeros((*own.shape[:3], v.shape[2]), q)
        carry = ((split(k, c.shards), split(v, c.shards)), *start)
        names = ("running_top", "running_total", "running_sums")
        (_, some, top, total, sums), _ = scan(step, carry, (meetings(allowed, c.shards),), names=names, tape=tape)
        # A query without keys gets 0 / 1; one whose scores are all -inf has overflowed and gets 0 / 0.
        top, total = record(tape, top=where(some, top, 0.0), total=where(some, total, 1.0))
        y = record(tape, y=joined(sums / total[..., None], t))
        return output(dtype, y)
