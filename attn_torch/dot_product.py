"""Dot-product attention: a query takes the average of the values whose keys it resembles."""

from jaxtyping import Bool, Float

from attn_np.contract.dot_product import Config
from attn_torch._attend import attend
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, Output, cast_output
from attn_torch._masks import zero_unseen_inputs
from attn_torch._ops import Array, Tape, dtype_name, record


class DotProductAttention(Layer[Config]):
    """A query takes the average of the values whose keys it resembles."""

    def forward(
        self,
        query: Float[Array, "b t k"],
        key: Float[Array, "b s k"] | None = None,
        value: Float[Array, "b s v"] | None = None,
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
        # Without projections that hidden keys could leak into, it is enough that `attend` sets them to 0.
        q, k, v = zero_unseen_inputs(tape, "bts", query, key, value, step=step)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["s"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, normalize_over=c.normalize_over,
            tape=tape, implementation=implementation, return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=context)
        return cast_output(dtype, y, weights, return_weights)
