"""Chunked attention: a query sees the keys of its own chunk of the sequence."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract._patterns import Chunks
from attn_np.contract.chunked import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, linear
from attn_np.ops.vjp import Grads, linear_vjp


class ChunkedAttention(Layer[Config]):
    """A query sees the keys of its own chunk of the sequence."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        call = AttentionCall(self, query, **options)
        query, key, value = call.inputs(pattern=Chunks(self.config.chunk_size))  # by which `call.attend` hides, too
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse; the pattern has no gradient."""
        back = AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv = back.attend(dcontext)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
