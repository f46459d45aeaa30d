"""Attention with rotary positions: queries and keys rotate with their positions, so scores depend on the distance."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, linear, record
from attn_jax.positions.rotary import Positions, cos_sin_for, record_positions, rotate
from attn_np.contract.rotary import Config


class RotaryAttention(Layer[Config]):
    """Queries and keys rotate with their positions, so scores depend on the distance."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        positions: Positions | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, positions=positions, **options)
        c, tape = self.config, call.tape
        query, key, value = call.inputs()
        positions = record_positions(tape, positions)
        cos, sin = cos_sin_for(c, positions, call.sizes["t"], like=query, step=call.step)
        q = rotate(linear("btd,dhk->bthk", query, self.w_q, self.b_q), cos, sin, c.rope_layout)
        k = rotate(linear("bsd,dhk->bshk", key, self.w_k, self.b_k), cos, sin, c.rope_layout)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        q, k = record(tape, q_rot=q, k_rot=k)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
