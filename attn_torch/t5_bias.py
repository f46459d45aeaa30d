"""T5's relative position biases: a learned number for each head and each bucket of distances is added to the scores."""

from jaxtyping import Bool, Float

from attn_np.contract.t5_bias import Config
from attn_torch._attend import attend
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, Output, cast_output
from attn_torch._masks import zero_unseen_inputs
from attn_torch._ops import Array, Tape, clip, constants, dtype_name, linear, record, take, upcast


class T5Attention(Layer[Config]):
    """A learned number for each head and each bucket of distances is added to the scores."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_bias: Float[Array, "x h"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def forward(
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
        query, key, value = zero_unseen_inputs(tape, "bhts", query, key, value, mask=mask, causal=c.causal, step=step)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        bias = record(tape, caller_bias=upcast(bias))

        def relative_bias_fn(relative_position: Array) -> Array:
            # b s t: the table's rows are then b s t h, and one swap of axes gives b h t s.
            relative_position = clip(relative_position.swapaxes(1, 2), -c.max_distance, c.max_distance)
            bucket = record(tape, bucket=constants(c.buckets(), relative_position)[relative_position + c.max_distance])
            return record(tape, position_bias=take(self.w_bias, bucket).swapaxes(1, 3))

        context, weights = attend(
            q, k, v, mask=mask, bias=bias, relative_bias_fn=relative_bias_fn, causal=c.causal, scale=c.scale,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
