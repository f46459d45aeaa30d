"""Relative position biases on a grid: a learned number for each offset of rows and columns, and for class tokens."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.grid_bias import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, linear, record, reorder, take
from attn_np.ops.vjp import Grads, linear_vjp, sum_to, take_vjp
from attn_np.positions.relative import grid_offsets


class GridBiasAttention(Layer[Config]):
    """A learned number for each head and each offset of rows and columns is added to the scores."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    w_bias: Float[Array, "x h"]
    b_q: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        c, call = self.config, AttentionCall(self, query, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, None)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        index = record(call.tape, relative_index=grid_offsets(c.height, c.width, c.prefix_tokens, query))
        position_bias = record(call.tape, position_bias=reorder(take(self.w_bias, index, fits=True), (2, 0, 1)))
        context = call.attend(q, k, v, layer_bias=position_bias)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        back = AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv = back.attend(dcontext, relative_bias=True)
        dposition_bias = record(tape, dposition_bias=sum_to(tape["dbiased"], tape["position_bias"].shape))
        dw["w_bias"] = take_vjp(self.w_bias, tape["relative_index"], reorder(dposition_bias, (1, 2, 0)))
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], _ = linear_vjp("bsd,dhk->bshk", key, self.w_k, None, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
