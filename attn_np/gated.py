"""Gated attention: every head's output is multiplied by a gate that is computed from the layer's input."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.gated import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, linear, record, sigmoid
from attn_np.ops.vjp import (
    Grads,
    linear_vjp,
    sigmoid_vjp,
    sum_grads,
    sum_to,
)


class GatedAttention(Layer[Config]):
    """Every head's output is multiplied by a gate that is computed from the layer's input."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_gate: Float[Array, "d h f"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    b_gate: Float[Array, "h f"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        tape = call.tape
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        gate_scores = record(tape, gate_scores=linear("btd,dhf->bthf", query, self.w_gate, self.b_gate))
        gate = record(tape, gate=sigmoid(gate_scores))
        gated = record(tape, gated=context * gate)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        back = AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        context, gate = tape["context"], tape["gate"]
        dgated, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, self.b_o, dy)
        dgated = record(tape, dgated=dgated)
        dcontext = dgated * gate
        dgate = record(tape, dgate=sum_to(dgated * context, gate.shape))
        dgate_scores = record(tape, dgate_scores=sigmoid_vjp(gate, dgate))
        dquery_gate, dw["w_gate"], dw["b_gate"] = linear_vjp(
            "btd,dhf->bthf", query, self.w_gate, self.b_gate, dgate_scores
        )
        dq, dk, dv = back.attend(dcontext)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(sum_grads(dquery, dquery_gate), dkey, dvalue)
