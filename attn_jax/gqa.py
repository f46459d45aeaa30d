"""Grouped-query attention: several query heads share one head of keys and values."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, linear
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
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,igk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v, memory_k=self.memory_k, memory_v=self.memory_v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
