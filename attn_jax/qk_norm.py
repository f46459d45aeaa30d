"""Query-key normalisation: queries and keys are normalised before they are compared."""

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import zero_unseen_inputs
from attn_jax._ops import Array, Tape, dtype_name, l2_normalize, layer_norm, linear, record, rms_norm, upcast
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
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, key, value, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,igk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        q, k = record(tape, q_proj=q, k_proj=k)
        q = record(tape, q_norm=normalize(c, q, self.w_q_norm if c.norm_over == "head" else self.w_q_norm_heads))
        k = record(tape, k_norm=normalize(c, k, self.w_k_norm if c.norm_over == "head" else self.w_k_norm_heads))
        scale = 1.0 if c.scale is None and c.norm == "l2" else c.scale
        if self.w_scale is not None:
            q = q * upcast(self.w_scale)[:, None]
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
