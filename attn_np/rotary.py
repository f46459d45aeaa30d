"""Attention with rotary positions: queries and keys rotate with their positions, so scores depend on the distance."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.rotary import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, linear, record
from attn_np.ops.vjp import Grads, linear_vjp
from attn_np.positions.rotary import Positions, cos_sin_for, record_positions, recorded_positions, rotate


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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv = back.attend(dcontext)
        dq, dk = record(tape, dq_rot=dq, dk_rot=dk)
        cos, sin = cos_sin_for(c, recorded_positions(tape), dy.shape[1], like=dy)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dk = rotate(dk, cos, sin, c.rope_layout, inverse=True)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", key, self.w_k, self.b_k, dk)
        dq = rotate(dq, cos, sin, c.rope_layout, inverse=True)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
