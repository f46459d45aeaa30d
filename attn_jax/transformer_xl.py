"""Transformer-XL's attention: contents and relative positions are scored apart, each with a bias of its own."""

from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.attention.attend import attend_checked
from attn_jax.attention.masks import hide_neg_inf, zero_unseen
from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    Tape,
    broadcast_to,
    clip,
    concatenate,
    dropout,
    einsum,
    linear,
    record,
    softmax,
    upcast,
)
from attn_jax.positions.relative import (
    relative_scores_per_head,
    sinusoids,
    to_key_positions,
)
from attn_np.contract.transformer_xl import Config


class TransformerXLAttention(Layer[Config]):
    """Contents and relative positions are scored apart, each with a bias of its own."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_r: Float[Array, "d h k"]
    b_content: Float[Array, "h k"]
    b_position: Float[Array, "h k"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = call.with_cached(k, v)
        low, high = 0 if c.causal else 1 - q.shape[1], k.shape[1]
        table = sinusoids(low, high, sizes["d"], c.base, like=q)
        rel = record(tape, rel=einsum("xd,dhk->xhk", table, self.w_r))

        def both_queries(tape: Tape, q: Array) -> Any:
            q_content, q_position = q + upcast(self.b_content), q + upcast(self.b_position)
            return record(tape, q_content=q_content, q_position=q_position)

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, bias: Any, keep: Any
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            q = zero_unseen("bhts->bthk", allowed, q)
            k, v = zero_unseen("bhts->bshk", allowed, k), zero_unseen("bhts->bshv", allowed, v)
            q, k, v = record(tape, q=q, k=k, v=v)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            query_minus_key = clip(-relative_position, low, high - 1)
            relative_index = record(tape, relative_index=query_minus_key - low)
            q_content, q_position = both_queries(tape, q)
            # Terms (a) and (c) of the paper; then (b) and (d) for every relative position, of which each pair takes
            # its own.
            content = einsum("bthk,bshk->bhts", q_content, k)
            position = relative_scores_per_head(tape, "relative_scores", q_position, rel, relative_index, k.shape[1])
            content, position = record(tape, content_scores=content, position_scores=position)
            scores = record(tape, scores=(content + position) * (1 / sqrt(sizes["k"]) if c.scale is None else c.scale))
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            probs = record(tape, probs=softmax(scores, hide_neg_inf(allowed, bias)))
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context, probs

        def attend_without_blocks(tape: Tape, q: Array, k: Array, v: Array, mask: Any, bias: Any) -> Any:
            t, s = q.shape[1], k.shape[1]
            q_content, q_position = both_queries(tape, q)
            key_sinusoids, query_sinusoids = (sinusoids(n, s, sizes["d"], c.base, like=q) for n in (0, s - t))
            position_features = to_key_positions(einsum("bthk,dhk->bthd", q_position, self.w_r), query_sinusoids)
            key_sinusoids = broadcast_to(key_sinusoids[:, None], (*k.shape[:3], sizes["d"]))
            q, k = concatenate([q_content, position_features], -1), concatenate([k, key_sinusoids], -1)
            scale = 1 / sqrt(sizes["k"]) if c.scale is None else c.scale
            return attend_checked(q, k, v, mask=mask, bias=upcast(bias), causal=c.causal, scale=scale, tape=tape)

        context = call.attend_in_rows(attend_rows, q, k, v, attend_without_blocks=attend_without_blocks)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
