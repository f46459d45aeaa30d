"""Grouped-query attention: several query heads share one head of keys and values."""

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import zero_unseen_inputs
from attn_jax._memory import with_memory
from attn_jax._ops import Array, Tape, dtype_name, linear, record
from attn_np.contract.gqa import Config


class GroupedQueryAttention(Layer[Config]):
    """Several query heads share one head of keys and values."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i g k"]
    w_v: Float[Array, "j g v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "g k"] | None
    b_v: Float[Array, "g v"] | None
    b_o: Float[Array, "o"] | None
    memory_k: Float[Array, "m g k"] | None
    memory_v: Float[Array, "m g v"] | None

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
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        s = k.shape[1]
        q, k, v, options = with_memory(
            self.memory_k, self.memory_v, q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window,
            keep=keep, rate=c.dropout, step=step, tape=tape,
        )  # fmt: skip
        context, weights = attend(
            q, k, v, **options, scale=c.scale, softcap=c.softcap, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        weights = None if weights is None else weights[..., :s]
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
