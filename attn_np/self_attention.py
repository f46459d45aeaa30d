"""Self-attention: every position of one sequence looks at all its positions, with a single head."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.self_attention import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, linear
from attn_np.ops.vjp import Grads, linear_vjp


class SelfAttention(Layer[Config]):
    """Every position of one sequence looks at all its positions, with a single head."""

    w_q: Float[Array, "d k"]
    w_k: Float[Array, "d k"]
    w_v: Float[Array, "d v"]
    w_o: Float[Array, "v o"] | None
    b_q: Float[Array, "k"] | None
    b_k: Float[Array, "k"] | None
    b_v: Float[Array, "v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        call = AttentionCall(self, query, **options)
        query, key, value = call.inputs()
        q = linear("btd,dk->btk", query, self.w_q, self.b_q)
        k = linear("bsd,dk->bsk", key, self.w_k, self.b_k)
        v = linear("bsd,dv->bsv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        y = context if self.w_o is None else linear("btv,vo->bto", context, self.w_o, self.b_o)
        return call.end(y)

    def vjp(self, tape: Tape, dy: Float[Array, "b t _"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        back = AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext = dy
        if self.w_o is not None:
            dcontext, dw["w_o"], dw["b_o"] = linear_vjp("btv,vo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv = back.attend(dcontext)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dv->bsv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dk->bsk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dk->btk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
