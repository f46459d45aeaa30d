"""Mamba-2: a state that each position lets fade and writes to, between a short convolution and a gate."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.mamba2 import Config
from attn_torch.attention.masks import zero_unseen
from attn_torch.frame.call import RecurrentCall, RecurrentOptions
from attn_torch.frame.layer import Layer
from attn_torch.ops import Array, exp, linear, record, repeat_heads, rms_norm, silu, softplus, upcast
from attn_torch.recurrence.convolution import convolve
from attn_torch.recurrence.rules import chunk_size_for, recurrence


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

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
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


def in_groups(x: Array, groups: int) -> Array:
    """Neighbouring heads of a group as one axis: `... h v` -> `... groups (h/groups v)`."""
    *batch, h, v = x.shape
    if groups == 1:  # JAX merges heads that lie on devices, and splits them not at once
        return x.reshape(*batch, h * v)[..., None, :]
    return x.reshape(*batch, groups, h // groups * v)
