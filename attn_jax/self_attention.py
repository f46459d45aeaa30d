"""Self-attention: every position of one sequence looks at all its positions, with a single head."""

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import zero_unseen_inputs
from attn_jax._ops import Array, Tape, dtype_name, linear, record
from attn_np.contract.self_attention import Config


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

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bts", query, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dk->btk", query, self.w_q, self.b_q)
        k = linear("bsd,dk->bsk", key, self.w_k, self.b_k)
        v = linear("bsd,dv->bsv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["t"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = context if self.w_o is None else linear("btv,vo->bto", context, self.w_o, self.b_o)
        y = record(tape, y=y)
        return cast_output(dtype, y, weights, return_weights)
