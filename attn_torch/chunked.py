"""Chunked attention: a query sees the keys of its own chunk of the sequence."""

from jaxtyping import Bool, Float

from attn_np.contract._patterns import Chunks
from attn_np.contract.chunked import Config
from attn_torch._attend import attend
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, Output, cast_output
from attn_torch._masks import zero_unseen_inputs
from attn_torch._ops import Array, Tape, dtype_name, linear, record


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

    def forward(
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
        pattern = Chunks(c.chunk_size)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, mask=mask, causal=c.causal, pattern=pattern, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["t"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, pattern=pattern, scale=c.scale, keep=keep,
            rate=c.dropout, step=step, tape=tape, implementation=implementation, return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
