"""T5's relative position biases: a learned number for each head and each bucket of distances is added to the scores."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, clip, linear, lookup, record, take
from attn_np.contract.t5_bias import Config


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
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)

        def relative_bias_fn(relative_position: Array) -> Array:
            # b s t: the table's rows are then b s t h, and one swap of axes gives b h t s.
            relative_position = clip(relative_position.swapaxes(1, 2), -c.max_distance, c.max_distance)
            bucket = record(tape, bucket=lookup(c.buckets(), relative_position + c.max_distance))
            return record(tape, position_bias=take(self.w_bias, bucket, fits=True).swapaxes(1, 3))

        context = call.attend(q, k, v, relative_bias_fn=relative_bias_fn)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
