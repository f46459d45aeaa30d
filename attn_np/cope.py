"""Contextual position encoding (CoPE): a key's position is the number of keys from it to the query, each counted by a
gate between 0 and 1.
"""

from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract.cope import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, RowOptions
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
    Array,
    Tape,
    concatenate,
    cumsum,
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
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    interpolate_last_vjp,
    linear_vjp,
    sigmoid_vjp,
    softmax_vjp,
    sum_grads,
    sum_to,
)


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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        width = self.w_q.shape[-1]
        scale = 1 / sqrt(width) if c.scale is None else c.scale

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dbias, allowed, gate_k = None, tape.get("allowed"), tape.get("gate_k")
            q, k, v, gates, positions, products, probs, kept = (
                tape[name] for name in ("q", "k", "v", "gates", "positions", "position_products", "probs", "kept")
            )
            dcontext = record(tape, dcontext=dcontext)
            dkept, dv = einsum_vjp("bhts,bshv->bthv", kept, v, dcontext)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            dscores = softmax_vjp(probs, dprobs)
            if "bias" in tape:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(dscores, tape["bias"].shape)
            dscores = record(tape, dscores=dscores)
            dposition_scores = record(tape, dposition_scores=dscores)
            dproducts, dpositions = interpolate_last_vjp(products, positions, dposition_scores)
            # A clipped position is that of the last row, where the slope is 0.
            dproducts, dpositions, dgate_sums = record(
                tape, dposition_products=dproducts, dpositions=dpositions, dgate_sums=dpositions
            )
            dproducts = dproducts * scale if c.scale_positions else dproducts
            dq_pos, dw_pos = einsum_vjp("bthk,xk->bhtx", q, self.w_pos, dproducts)
            # A gate is in the sums of its own key and of those before it.
            dgates = record(tape, dgates=cumsum(dgate_sums, -1))
            dgate_scores = sigmoid_vjp(gates, dgates)  # 0 for a hidden key, whose gate is 0
            dgate_k = None
            if c.gate_with == "keys":
                dcontent_scores = record(tape, dcontent_scores=sum_grads(dscores, dgate_scores))
                dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, dcontent_scores * scale)
                dq = sum_grads(dq, dq_pos)
            else:
                dcontent_scores, dgate_scores = record(tape, dcontent_scores=dscores, dgate_scores=dgate_scores)
                dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, dcontent_scores * scale)
                gate_operand = v if gate_k is None else gate_k
                dq_gate, dgate_operand = einsum_vjp("bthk,bshk->bhts", q, gate_operand, dgate_scores * scale)
                dq = sum_grads(dq, dq_pos, dq_gate)
                dv, dgate_k = (sum_grads(dv, dgate_operand), None) if gate_k is None else (dv, dgate_operand)
            dq, dk, dv, dgate_k = record(tape, dq=dq, dk=dk, dv=dv, dgate_k=dgate_k)
            dk = dk if dgate_k is None else concatenate([dk, dgate_k], -1)
            dq = zero_unseen("bhts->bthk", allowed, dq)
            dk, dv = zero_unseen("bhts->bshk", allowed, dk), zero_unseen("bhts->bshv", allowed, dv)
            return {"q": dq, "k": dk, "v": dv, "bias": dbias, "w_pos": dw_pos}

        dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext)
        dk, dgate_k = dk[..., :width], dk[..., width:]
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", key, self.w_k, self.b_k, dk)
        if self.w_gate_k is not None:
            dkey_gate, dw["w_gate_k"], dw["b_gate_k"] = linear_vjp(
                "bsd,dhk->bshk", key, self.w_gate_k, self.b_gate_k, dgate_k
            )
            dkey = sum_grads(dkey, dkey_gate)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
