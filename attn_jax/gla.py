"""Gated linear attention: every channel of the keys has a decay of its own, which each position chooses."""

from math import sqrt

from jaxtyping import Bool, Float

from attn_jax._decode import DecodeStep, read_state, real_mask, write_state
from attn_jax._layer import Layer, cast_output
from attn_jax._masks import zero_unseen
from attn_jax._ops import Array, Tape, dtype_name, exp, linear, record, rms_norm, silu, softplus, upcast, zeros
from attn_jax._recurrence import chunk_size_for, recurrence
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

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        step: DecodeStep | None = None,
    ) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the context is 0."""
        sizes = self.check(query=query, mask=mask)
        c, dtype = self.config, dtype_name(query)
        x, real = record(tape, x=upcast(query), real=real_mask(mask, step))
        x = record(tape, zeroed_query=zero_unseen("bt->btd", real, x))
        q = linear("btd,dhk->bthk", x, self.w_q, None)
        k = linear("btd,dhk->bthk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        q, k, v = record(tape, q=q, k=k, v=v)
        latent = record(tape, latent=linear("btd,dz->btz", x, self.w_a_down, None))
        a = record(tape, a=linear("btz,zhk->bthk", latent, self.w_a_up, self.b_a))
        # the logarithm of sigmoid(a)^(1 / temperature)
        log_decay = record(tape, log_decay=zero_unseen("bt->bthk", real, -(softplus(-a) * (1 / c.temperature))))
        decay = record(tape, decay=exp(log_decay))
        initial_state = read_state(step, "state", zeros((sizes["b"], sizes["h"], sizes["k"], sizes["v"]), q))
        q_scaled, chunk_size = q * (1 / sqrt(sizes["k"])), chunk_size_for(c.form, c.chunk_size, sizes["t"])
        context, final_state = recurrence(
            q_scaled, k, v, None, decay, initial_state, chunk_size, delta_rule=False, tape=tape
        )
        write_state(step, state=final_state)
        context = record(tape, context=context)
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps))
        gate_scores = record(tape, gate_scores=linear("btd,dhv->bthv", x, self.w_gate, None))
        gated = record(tape, gated=silu(gate_scores) * normed)
        y = record(tape, y=linear("bthv,hvo->bto", gated, self.w_o, None))
        return cast_output(dtype, y)
