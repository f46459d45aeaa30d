"""Kimi delta attention: the gated delta rule with a decay for every channel of the keys."""

from math import sqrt
from typing import Unpack

from jaxtyping import Float

from attn_np.attention.masks import zero_unseen
from attn_np.contract.kda import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions
from attn_np.frame.layer import Layer
from attn_np.ops import (
    Array,
    Tape,
    exp,
    l2_normalize,
    linear,
    record,
    repeat_heads,
    rms_norm,
    sigmoid,
    silu,
    softplus,
    upcast,
    zeros,
)
from attn_np.ops.vjp import (
    Grads,
    l2_normalize_vjp,
    linear_vjp,
    repeat_heads_vjp,
    rms_norm_vjp,
    sigmoid_vjp,
    silu_vjp,
    softplus_vjp,
    sum_to,
)
from attn_np.recurrence.convolution import convolve, convolve_vjp
from attn_np.recurrence.rules import chunk_size_for, recurrence, recurrence_vjp


class KimiDeltaAttention(Layer[Config]):
    """The gated delta rule with a decay for every channel of the keys."""

    w_q: Float[Array, "d g k"]
    w_k: Float[Array, "d g k"]
    w_v: Float[Array, "d h v"]
    w_beta: Float[Array, "d h"]
    w_a_down: Float[Array, "d z"]
    w_a_up: Float[Array, "z h k"]
    a_log: Float[Array, "h"]
    dt_bias: Float[Array, "h k"]
    w_gate_down: Float[Array, "d z"]
    w_gate_up: Float[Array, "z h v"]
    b_gate: Float[Array, "h v"]
    w_norm: Float[Array, "v"]
    w_q_conv: Float[Array, "x g k"] | None
    w_k_conv: Float[Array, "x g k"] | None
    w_v_conv: Float[Array, "x h v"] | None
    w_o: Float[Array, "h v o"]

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the context is 0."""
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = linear("btd,dgk->btgk", x, self.w_q, None)
        k = linear("btd,dgk->btgk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            q = convolve("q", q, self.w_q_conv, real, call.continues, call.step, tape)
            k = convolve("k", k, self.w_k_conv, real, call.continues, call.step, tape)
            v = convolve("v", v, self.w_v_conv, real, call.continues, call.step, tape)
        q, k, v = record(tape, q=q, k=k, v=v)
        beta = record(tape, beta=sigmoid(linear("btd,dh->bth", x, self.w_beta, None)))
        latent = record(tape, latent=linear("btd,dz->btz", x, self.w_a_down, None))
        a = record(tape, a=linear("btz,zhk->bthk", latent, self.w_a_up, self.dt_bias))
        rate = exp(upcast(self.a_log))[:, None]
        log_decay = record(tape, log_decay=zero_unseen("bt->bthk", real, -(rate * softplus(a))))
        decay = record(tape, decay=zero_unseen("bt->bthk", call.continues, exp(log_decay)))
        q_unit = zero_unseen("bt->btgk", real, l2_normalize(silu(q), c.qk_eps()))
        k_unit = zero_unseen("bt->btgk", real, l2_normalize(silu(k), c.qk_eps()))
        q_unit, k_unit, v_silu = record(tape, q_unit=q_unit, k_unit=k_unit, v_silu=silu(v))
        q_unit, k_unit = repeat_heads(q_unit, v_silu), repeat_heads(k_unit, v_silu)
        q_scaled, chunk_size = q_unit * (1 / sqrt(sizes["k"])), chunk_size_for(c.form, c.chunk_size, sizes["t"])

        def form(v, state, tape):
            return recurrence(q_scaled, k_unit, v, beta, decay, state, chunk_size, delta_rule=True, tape=tape)

        context = record(tape, context=call.run(form, v_silu))
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps))
        gate_latent = record(tape, gate_latent=linear("btd,dz->btz", x, self.w_gate_down, None))
        gate = record(tape, gate=sigmoid(linear("btz,zhv->bthv", gate_latent, self.w_gate_up, self.b_gate)))
        gated = record(tape, gated=gate * normed)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, None))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, a, real = (tape.get(name) for name in ("zeroed_query", "q", "k", "v", "a", "real"))
        q_unit, k_unit, v_silu, beta = (tape[name] for name in ("q_unit", "k_unit", "v_silu", "beta"))
        q_unit, k_unit = repeat_heads(q_unit, v_silu), repeat_heads(k_unit, v_silu)
        gate, decay = tape["gate"], tape["decay"]
        dy, dw, scale = back.dy, back.dw, 1 / sqrt(q.shape[-1])
        dgated, dw["w_o"], _ = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, None, dy)
        dgated = record(tape, dgated=dgated)
        dnormed, dgate = record(tape, dnormed=dgated * gate, dgate=dgated * tape["normed"])
        dgate_latent, dw["w_gate_up"], dw["b_gate"] = linear_vjp(
            "btz,zhv->bthv", tape["gate_latent"], self.w_gate_up, self.b_gate, sigmoid_vjp(gate, dgate)
        )
        dgate_latent = record(tape, dgate_latent=dgate_latent)
        dx_gate, dw["w_gate_down"], _ = linear_vjp("btd,dz->btz", x, self.w_gate_down, None, dgate_latent)
        dcontext, dw["w_norm"] = rms_norm_vjp(tape["context"], self.w_norm, c.norm_eps, dnormed)
        dcontext = record(tape, dcontext=dcontext)
        zero_state = zeros((v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]), q)
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])
        cotangents = recurrence_vjp(
            tape, q_unit * scale, k_unit, v_silu, beta, decay, zero_state, chunk_size, delta_rule=True, dout=dcontext,
            dfinal_state=zero_state,
        )  # fmt: skip
        dq_scaled, dk_unit, dv_silu, dbeta, ddecay, *_ = cotangents
        dq_unit, dk_unit = (repeat_heads_vjp(dx, q.shape[2]) for dx in (dq_scaled * scale, dk_unit))
        dq_unit, dk_unit = record(tape, dq_unit=dq_unit, dk_unit=dk_unit)
        dv_silu, ddecay = record(tape, dv_silu=dv_silu, ddecay=ddecay)
        dq = silu_vjp(q, l2_normalize_vjp(silu(q), c.qk_eps(), zero_unseen("bt->btgk", real, dq_unit)))
        dk = silu_vjp(k, l2_normalize_vjp(silu(k), c.qk_eps(), zero_unseen("bt->btgk", real, dk_unit)))
        # log_decay = -rate softplus(a) with rate = exp(a_log)
        dlog_decay, rate = record(tape, dlog_decay=ddecay * decay), exp(upcast(self.a_log))[:, None]
        dlog_decay = zero_unseen("bt->bthk", real, dlog_decay)
        dw["a_log"] = -sum_to(dlog_decay * softplus(a), rate.shape)[:, 0] * rate[:, 0]
        da = softplus_vjp(a, -(dlog_decay * rate))
        dq, dk, dv, dbeta, da = record(tape, dq=dq, dk=dk, dv=silu_vjp(v, dv_silu), dbeta=dbeta, da=da)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            dv, dw["w_v_conv"] = convolve_vjp("v", tape, self.w_v_conv, real, back.continues, dv)
            dk, dw["w_k_conv"] = convolve_vjp("k", tape, self.w_k_conv, real, back.continues, dk)
            dq, dw["w_q_conv"] = convolve_vjp("q", tape, self.w_q_conv, real, back.continues, dq)
        dlatent, dw["w_a_up"], dw["dt_bias"] = linear_vjp(
            "btz,zhk->bthk", tape["latent"], self.w_a_up, self.dt_bias, da
        )
        dx_a, dw["w_a_down"], _ = linear_vjp("btd,dz->btz", x, self.w_a_down, None, record(tape, dlatent=dlatent))
        dx_beta, dw["w_beta"], _ = linear_vjp("btd,dh->bth", x, self.w_beta, None, sigmoid_vjp(beta, dbeta))
        dx_v, dw["w_v"], _ = linear_vjp("btd,dhv->bthv", x, self.w_v, None, dv)
        dx_k, dw["w_k"], _ = linear_vjp("btd,dgk->btgk", x, self.w_k, None, dk)
        dx_q, dw["w_q"], _ = linear_vjp("btd,dgk->btgk", x, self.w_q, None, dq)
        return back.end(dx_q, dx_k, dx_v, dx_gate, dx_beta, dx_a)
