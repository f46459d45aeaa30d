"""Query-key normalisation: queries and keys are normalised before they are compared."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, l2_normalize, layer_norm, linear, record, rms_norm, upcast
from attn_np.contract.qk_norm import Config


def normalize(c: Config, x: Array, weight: Array | None) -> Array:
    """x normalised: each head by itself, or all heads of a position together."""
    together = c.norm_over == "all"
    width = x.shape[2] * x.shape[3]
    flat = x.reshape(*x.shape[:2], width) if together else x
    weight = upcast(weight).reshape(width) if together and weight is not None else weight
    if c.norm == "l2":
        normed = l2_normalize(flat, c.norm_eps)
    elif c.norm == "rms":
        normed = rms_norm(flat, weight, c.norm_eps)
    else:
        normed = layer_norm(flat, weight, None, c.norm_eps)
    return normed.reshape(x.shape)


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
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,igk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        q, k = record(tape, q_proj=q, k_proj=k)
        q = record(tape, q_norm=normalize(c, q, self.w_q_norm if c.norm_over == "head" else self.w_q_norm_heads))
        k = record(tape, k_norm=normalize(c, k, self.w_k_norm if c.norm_over == "head" else self.w_k_norm_heads))
        scale = 1.0 if c.scale is None and c.norm == "l2" else c.scale
        if self.w_scale is not None:
            q = q * upcast(self.w_scale)[:, None]
        context = call.attend(q, k, v, scale=scale)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
