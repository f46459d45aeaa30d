"""Contextual position encoding (CoPE): a key's position is the number of keys from it to the query, each counted by a
gate between 0 and 1.
"""

from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.attention.masks import hide_neg_inf, zero_unseen
from attn_jax.frame.call import AttentionCall, RowOptions
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    Tape,
    concatenate,
    dropout,
    einsum,
    interpolate_last,
    linear,
    record,
    reverse_cumsum,
    sigmoid,
    softmax,
    upcast,
    where,
)
from attn_np.contract.cope import Config


class ContextualPositionAttention(Layer[Config]):
    """A key's position is the number of keys from it to the query, each counted by a gate between 0 and 1."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    w_pos: Float[Array, "x k"]
    w_gate_k: Float[Array, "d h k"] | None
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    b_gate_k: Float[Array, "h k"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RowOptions]) -> Output:
        call = AttentionCall(self, query, **options)
        c, sizes = self.config, call.sizes
        query, key, value = call.inputs(causal=True)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        if self.w_gate_k is not None:
            gate_k = linear("bsd,dhk->bshk", key, self.w_gate_k, self.b_gate_k)
            k, v, gate_k = call.cached(k=k, v=v, gate_k=gate_k)
            k = concatenate([k, gate_k], -1)
        scale = 1 / sqrt(sizes["k"]) if c.scale is None else c.scale
        last_position = c.num_positions - 1

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, bias: Any, keep: Any
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            q = zero_unseen("bhts->bthk", allowed, q)
            k, v = zero_unseen("bhts->bshk", allowed, k), zero_unseen("bhts->bshv", allowed, v)
            gate_k = k[..., sizes["k"] :] if c.gate_with == "own_keys" else None
            q, k, v, gate_k = record(tape, q=q, k=k[..., : sizes["k"]], v=v, gate_k=gate_k)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            visible = hide_neg_inf(allowed, bias)
            content_scores = gate_scores = record(tape, content_scores=einsum("bthk,bshk->bhts", q, k) * scale)
            if c.gate_with != "keys":
                gate_operand = v if gate_k is None else gate_k
                gate_scores = record(tape, gate_scores=einsum("bthk,bshk->bhts", q, gate_operand) * scale)
            gates = sigmoid(gate_scores)
            gates = record(tape, gates=gates if visible is None else where(visible, gates, 0.0))
            gate_sums = record(tape, gate_sums=reverse_cumsum(gates))
            # not `clip`: NaN stays NaN
            positions = record(tape, positions=where(gate_sums > last_position, last_position, gate_sums))
            products = einsum("bthk,xk->bhtx", q, self.w_pos)
            products = record(tape, position_products=products * scale if c.scale_positions else products)
            position_scores = record(tape, position_scores=interpolate_last(products, positions))
            scores = record(tape, scores=content_scores + position_scores)
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            probs = record(tape, probs=softmax(scores, visible))
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context, probs

        context = call.attend_in_rows(attend_rows, q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
