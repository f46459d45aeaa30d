"""Query-key normalisation: queries and keys are normalised before they are compared."""

from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.contract.qk_norm import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.normalizers.norms import normalize, normalize_vjp
from attn_np.ops import Array, Tape, linear, record, upcast
from attn_np.ops.vjp import Grads, linear_vjp


class QKNormAttention(Layer[Config]):
    """Several heads attend in parallel with normalised queries and keys."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i g k"]
    w_v: Float[Array, "j g v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "g k"] | None
    b_v: Float[Array, "g v"] | None
    b_o: Float[Array, "o"] | None
    w_q_norm: Float[Array, "k"] | None
    w_k_norm: Float[Array, "k"] | None
    w_q_norm_heads: Float[Array, "h k"] | None
    w_k_norm_heads: Float[Array, "g k"] | None
    b_q_norm: Float[Array, "k"] | None
    b_k_norm: Float[Array, "k"] | None
    b_q_norm_heads: Float[Array, "h k"] | None
    b_k_norm_heads: Float[Array, "g k"] | None
    w_context_norm: Float[Array, "v"] | None
    b_context_norm: Float[Array, "v"] | None
    w_context_norm_heads: Float[Array, "h v"] | None
    b_context_norm_heads: Float[Array, "h v"] | None
    w_scale: Float[Array, "h"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, tape = self.config, call.tape
        norm, context_norm = c.norms()
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,igk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        q, k = record(tape, q_proj=q, k_proj=k)
        q, k = record(tape, q_norm=normalize(self, norm, "q", q), k_norm=normalize(self, norm, "k", k))
        scale = 1.0 if c.scale is None and c.norm == "l2" else c.scale
        if self.w_scale is not None:
            q = q * upcast(self.w_scale)[:, None]
        context = call.attend(q, k, v, scale=scale)
        if context_norm is not None:
            context = record(tape, normed=normalize(self, context_norm, "context", context))
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        norm, context_norm = c.norms()
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        context = tape["context" if context_norm is None else "normed"]
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context, self.w_o, self.b_o, dy)
        if context_norm is not None:
            dnormed = record(tape, dnormed=dcontext)
            dcontext = normalize_vjp(self, context_norm, "context", tape["context"], dnormed, dw)
            dcontext = record(tape, dcontext=dcontext)
        scale = 1.0 if c.scale is None and c.norm == "l2" else c.scale
        dq, dk, dv = back.attend(dcontext, scale=scale)
        if self.w_scale is not None:
            dw["w_scale"] = np.sum(dq * tape["q_norm"], axis=(0, 1, 3))
            dq = dq * upcast(self.w_scale)[:, None]
        dq, dk = record(tape, dq_norm=dq, dk_norm=dk)
        dq = normalize_vjp(self, norm, "q", tape["q_proj"], dq, dw)
        dk = normalize_vjp(self, norm, "k", tape["k_proj"], dk, dw)
        dq, dk = record(tape, dq_proj=dq, dk_proj=dk)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jgv->bsgv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,igk->bsgk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
