"""Gated linear attention: every channel of the keys has a decay of its own, which each position chooses."""

from math import sqrt
from typing import Unpack

from jaxtyping import Float

from attn_np.attention.masks import zero_unseen
from attn_np.contract.gla import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions
from attn_np.frame.layer import Layer
from attn_np.ops import Array, Tape, exp, linear, record, rms_norm, silu, softplus, zeros
from attn_np.ops.vjp import Grads, linear_vjp, rms_norm_vjp, silu_vjp, softplus_vjp
from attn_np.recurrence.rules import chunk_size_for, recurrence, recurrence_vjp


class GatedLinearAttention(Layer[Config]):
    """Every channel of the keys has a decay of its own, which each position chooses."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_gate: Float[Array, "d h v"]
    w_a_down: Float[Array, "d z"]
    w_a_up: Float[Array, "z h k"]
    b_a: Float[Array, "h k"]
    w_norm: Float[Array, "v"]
    w_o: Float[Array, "h v o"]

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the context is 0."""
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = linear("btd,dhk->bthk", x, self.w_q, None)
        k = linear("btd,dhk->bthk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        q, k, v = record(tape, q=q, k=k, v=v)
        latent = record(tape, latent=linear("btd,dz->btz", x, self.w_a_down, None))
        a = record(tape, a=linear("btz,zhk->bthk", latent, self.w_a_up, self.b_a))
        # the logarithm of sigmoid(a)^(1 / temperature)
        log_decay = record(tape, log_decay=zero_unseen("bt->bthk", real, -(softplus(-a) * (1 / c.temperature))))
        decay = record(tape, decay=zero_unseen("bt->bthk", call.continues, exp(log_decay)))
        q_scaled, chunk_size = q * (1 / sqrt(sizes["k"])), chunk_size_for(c.form, c.chunk_size, sizes["t"])

        def form(v, state, tape):
            return recurrence(q_scaled, k, v, None, decay, state, chunk_size, delta_rule=False, tape=tape)

        context = record(tape, context=call.run(form, v))
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps))
        gate_scores = record(tape, gate_scores=linear("btd,dhv->bthv", x, self.w_gate, None))
        gated = record(tape, gated=silu(gate_scores) * normed)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, None))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, gate_scores, real = (
            tape.get(name) for name in ("zeroed_query", "q", "k", "v", "gate_scores", "real")
        )
        a, decay, latent = tape["a"], tape["decay"], tape["latent"]
        dy, dw, scale = back.dy, back.dw, 1 / sqrt(q.shape[-1])
        dgated, dw["w_o"], _ = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, None, dy)
        dgated = record(tape, dgated=dgated)
        dnormed, dgate_scores = record(
            tape, dnormed=dgated * silu(gate_scores), dgate_scores=silu_vjp(gate_scores, dgated * tape["normed"])
        )
        dx_gate, dw["w_gate"], _ = linear_vjp("btd,dhv->bthv", x, self.w_gate, None, dgate_scores)
        dcontext, dw["w_norm"] = rms_norm_vjp(tape["context"], self.w_norm, c.norm_eps, dnormed)
        dcontext = record(tape, dcontext=dcontext)
        zero_state = zeros((*q.shape[:1], *q.shape[2:], v.shape[-1]), q)
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])
        cotangents = recurrence_vjp(
            tape,
            q * scale,
            k,
            v,
            None,
            decay,
            zero_state,
            chunk_size,
            delta_rule=False,
            dout=dcontext,
            dfinal_state=zero_state,
        )
        dq_scaled, dk, dv, _, ddecay, *_ = cotangents
        dq, dk, dv, ddecay = record(tape, dq=dq_scaled * scale, dk=dk, dv=dv, ddecay=ddecay)
        dlog_decay = record(tape, dlog_decay=ddecay * decay)
        # log_decay = -softplus(-a) / temperature
        da = record(tape, da=softplus_vjp(-a, zero_unseen("bt->bthk", real, dlog_decay) * (1 / c.temperature)))
        dlatent, dw["w_a_up"], dw["b_a"] = linear_vjp("btz,zhk->bthk", latent, self.w_a_up, self.b_a, da)
        dx_a, dw["w_a_down"], _ = linear_vjp("btd,dz->btz", x, self.w_a_down, None, record(tape, dlatent=dlatent))
        dx_v, dw["w_v"], _ = linear_vjp("btd,dhv->bthv", x, self.w_v, None, dv)
        dx_k, dw["w_k"], _ = linear_vjp("btd,dhk->bthk", x, self.w_k, None, dk)
        dx_q, dw["w_q"], _ = linear_vjp("btd,dhk->bthk", x, self.w_q, None, dq)
        return back.end(dx_q, dx_k, dx_v, dx_gate, dx_a)
