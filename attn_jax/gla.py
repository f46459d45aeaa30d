"""Gated linear attention: every channel of the keys has a decay of its own, which each position chooses."""

from math import sqrt
from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.masks import zero_unseen
from attn_jax.frame.call import RecurrentCall, RecurrentOptions
from attn_jax.frame.layer import Layer
from attn_jax.ops import Array, exp, linear, record, rms_norm, silu, softplus
from attn_jax.recurrence.rules import chunk_size_for, recurrence
from attn_np.contract.gla import Config


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
