"""Attention sinks: one more score in the softmax, without key and value, so that a head need not look at anything."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, linear, upcast, zeros
from attn_np.contract.sinks import Config


class SinkAttention(Layer[Config]):
    """Several heads attend in parallel; each may leave its weight in a sink."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    sinks: Float[Array, "h"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        sinks = zeros((call.sizes["h"],), q) if self.sinks is None else upcast(self.sinks)
        context = call.attend(q, k, v, sinks=sinks)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
