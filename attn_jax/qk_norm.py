"""Query-key normalisation: queries and keys are normalised before they are compared."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.normalizers.norms import normalize
from attn_jax.ops import Array, linear, record, upcast
from attn_np.contract.qk_norm import Config


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
