"""Kimi delta attention: the gated delta rule with a decay for every channel of the keys."""

from math import sqrt
from typing import Unpack

from jaxtyping import Float

from attn_np.contract.kda import Config
from attn_torch.attention.masks import zero_unseen
from attn_torch.frame.call import RecurrentCall, RecurrentOptions
from attn_torch.frame.layer import Layer
from attn_torch.ops import (
    Array,
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
)
from attn_torch.recurrence.convolution import convolve
from attn_torch.recurrence.rules import chunk_size_for, recurrence


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

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
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
