"""Mamba-2: a state that each position lets fade and writes to, between a short convolution and a gate."""

from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.masks import zero_unseen
from attn_np.contract.mamba2 import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions
from attn_np.frame.layer import Layer
from attn_np.ops import Array, Tape, exp, linear, record, repeat_heads, rms_norm, silu, softplus, upcast, zeros
from attn_np.ops.vjp import (
    Grads,
    linear_vjp,
    repeat_heads_vjp,
    rms_norm_vjp,
    silu_vjp,
    softplus_vjp,
    sum_grads,
    sum_to,
)
from attn_np.recurrence.convolution import convolve, convolve_vjp
from attn_np.recurrence.rules import chunk_size_for, recurrence, recurrence_vjp


class Mamba2(Layer[Config]):
    """A state that each position lets fade and writes to, between a short convolution and a gate."""

    w_q: Float[Array, "d g k"]
    w_k: Float[Array, "d g k"]
    w_v: Float[Array, "d h v"]
    w_q_conv: Float[Array, "x g k"] | None
    w_k_conv: Float[Array, "x g k"] | None
    w_v_conv: Float[Array, "x h v"] | None
    b_q_conv: Float[Array, "g k"] | None
    b_k_conv: Float[Array, "g k"] | None
    b_v_conv: Float[Array, "h v"] | None
    w_gate: Float[Array, "d h v"]
    w_dt: Float[Array, "d h"]
    dt_bias: Float[Array, "h"]
    a_log: Float[Array, "h"]
    skip: Float[Array, "h"]
    w_norm: Float[Array, "h v"] | None
    w_o: Float[Array, "h v o"]

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the state is not read."""
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = linear("btd,dgk->btgk", x, self.w_q, None)
        k = linear("btd,dgk->btgk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            q = convolve("q", q, self.w_q_conv, real, call.continues, call.step, tape)
            k = convolve("k", k, self.w_k_conv, real, call.continues, call.step, tape)
            v = convolve("v", v, self.w_v_conv, real, call.continues, call.step, tape)
        if self.b_q_conv is not None and self.b_k_conv is not None and self.b_v_conv is not None:
            q, k, v = q + upcast(self.b_q_conv), k + upcast(self.b_k_conv), v + upcast(self.b_v_conv)
        q, k, v = record(tape, q=q, k=k, v=v)
        q_silu, k_silu, v_silu = record(tape, q_silu=silu(q), k_silu=silu(k), v_silu=silu(v))
        dt = record(tape, dt=linear("btd,dh->bth", x, self.w_dt, self.dt_bias))
        step = record(tape, step=zero_unseen("bt->bth", real, softplus(dt)))
        decay = exp(-(exp(upcast(self.a_log)) * step))
        decay = record(tape, decay=zero_unseen("bt->bth", call.continues, decay))
        q_heads = zero_unseen("bt->bthk", real, repeat_heads(q_silu, v_silu))
        k_heads, chunk_size = repeat_heads(k_silu, v_silu), chunk_size_for(c.form, c.chunk_size, sizes["t"])

        def form(v, state, tape):
            return recurrence(q_heads, k_heads, v, step, decay[..., None], state, chunk_size, False, tape)

        context = record(tape, context=call.run(form, v_silu) + upcast(self.skip)[:, None] * v_silu)
        gate_scores = record(tape, gate_scores=linear("btd,dhv->bthv", x, self.w_gate, None))
        gated = record(tape, gated=silu(gate_scores) * context)
        if self.w_norm is not None:
            weight = in_groups(self.w_norm, c.norm_groups)
            normed = rms_norm(in_groups(gated, c.norm_groups), weight, c.norm_eps)
            gated = record(tape, normed=normed.reshape(gated.shape))
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, None))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, dt, real = (tape.get(name) for name in ("zeroed_query", "q", "k", "v", "dt", "real"))
        q_silu, k_silu, v_silu, step, decay = (tape[name] for name in ("q_silu", "k_silu", "v_silu", "step", "decay"))
        gate_scores, dy, dw = tape["gate_scores"], back.dy, back.dw
        normed = tape["gated" if self.w_norm is None else "normed"]
        dgated, dw["w_o"], _ = linear_vjp("bthv,hvo->bto", normed, self.w_o, None, dy)
        if self.w_norm is not None:
            dnormed, weight = record(tape, dnormed=dgated), in_groups(self.w_norm, c.norm_groups)
            groups = in_groups(tape["gated"], c.norm_groups), weight, c.norm_eps, in_groups(dnormed, c.norm_groups)
            dgroups, dweight = rms_norm_vjp(*groups)
            dgated = dgroups.reshape(gate_scores.shape)
            dw["w_norm"] = None if dweight is None else dweight.reshape(self.w_norm.shape)
        dgated = record(tape, dgated=dgated)
        dcontext = record(tape, dcontext=dgated * silu(gate_scores))
        dgate_scores = record(tape, dgate_scores=silu_vjp(gate_scores, dgated * tape["context"]))
        dx_gate, dw["w_gate"], _ = linear_vjp("btd,dhv->bthv", x, self.w_gate, None, dgate_scores)
        dw["skip"] = sum_to(np.sum(dcontext * v_silu, axis=-1), self.skip.shape)
        zero_state = zeros((v.shape[0], v.shape[2], q.shape[-1], v.shape[-1]), q)
        dq_heads, dk_heads, dv_silu, dstep, ddecay, *_ = recurrence_vjp(
            tape, zero_unseen("bt->bthk", real, repeat_heads(q_silu, v_silu)), repeat_heads(k_silu, v_silu), v_silu,
            step, decay[..., None], zero_state, chunk_size_for(c.form, c.chunk_size, q.shape[1]), delta_rule=False,
            dout=dcontext, dfinal_state=zero_state,
        )  # fmt: skip
        dq_silu = repeat_heads_vjp(zero_unseen("bt->bthk", real, dq_heads), q.shape[2])
        dk_silu, ddecay = record(tape, dk_silu=repeat_heads_vjp(dk_heads, k.shape[2]), ddecay=ddecay[..., 0])
        dv_silu = record(tape, dv_silu=sum_grads(dv_silu, upcast(self.skip)[:, None] * dcontext))
        dq, dk, dv = silu_vjp(q, record(tape, dq_silu=dq_silu)), silu_vjp(k, dk_silu), silu_vjp(v, dv_silu)
        # decay = exp(-rate step) with rate = exp(a_log)
        dexponent, rate = -(ddecay * decay), exp(upcast(self.a_log))
        dw["a_log"] = sum_to(dexponent * step, rate.shape) * rate
        dstep = record(tape, dstep=sum_grads(dstep, dexponent * rate))
        ddt = softplus_vjp(dt, zero_unseen("bt->bth", real, dstep))
        dq, dk, dv, ddt = record(tape, dq=dq, dk=dk, dv=dv, ddt=ddt)
        if self.b_q_conv is not None and self.b_k_conv is not None and self.b_v_conv is not None:
            dw["b_q_conv"], dw["b_k_conv"] = sum_to(dq, self.b_q_conv.shape), sum_to(dk, self.b_k_conv.shape)
            dw["b_v_conv"] = sum_to(dv, self.b_v_conv.shape)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            dv, dw["w_v_conv"] = convolve_vjp("v", tape, self.w_v_conv, real, back.continues, dv)
            dk, dw["w_k_conv"] = convolve_vjp("k", tape, self.w_k_conv, real, back.continues, dk)
            dq, dw["w_q_conv"] = convolve_vjp("q", tape, self.w_q_conv, real, back.continues, dq)
        dx_dt, dw["w_dt"], dw["dt_bias"] = linear_vjp("btd,dh->bth", x, self.w_dt, self.dt_bias, ddt)
        dx_v, dw["w_v"], _ = linear_vjp("btd,dhv->bthv", x, self.w_v, None, dv)
        dx_k, dw["w_k"], _ = linear_vjp("btd,dgk->btgk", x, self.w_k, None, dk)
        dx_q, dw["w_q"], _ = linear_vjp("btd,dgk->btgk", x, self.w_q, None, dq)
        return back.end(dx_q, dx_k, dx_v, dx_gate, dx_dt)


def in_groups(x: Array, groups: int) -> Array:
    """Neighbouring heads of a group as one axis: `... h v` -> `... groups (h/groups v)`."""
    *batch, h, v = x.shape
    if groups == 1:  # JAX merges heads that lie on devices, and splits them not at once
        return x.reshape(*batch, h * v)[..., None, :]
    return x.reshape(*batch, groups, h // groups * v)
