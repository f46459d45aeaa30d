"""Prefix attention: all positions see the prefix, and the rest is causal."""

from typing import Unpack

from jaxtyping import Float, Int

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, linear
from attn_np.contract._patterns import Causal, Prefix
from attn_np.contract.prefix import Config


class PrefixAttention(Layer[Config]):
    """All positions see the prefix, and the rest is causal."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        prefix: Int[Array, "b"],
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, prefix=prefix, **options)
        query, key, value = call.inputs(pattern=Prefix(prefix) | Causal())
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
