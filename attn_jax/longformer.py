"""Longformer attention: a window of neighbours, and a few positions that see all and are seen by all."""

from typing import Unpack

from jaxtyping import Bool, Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, arange, broadcast_to, linear, record
from attn_np.contract._patterns import GlobalKeys, GlobalQueries, Not, Window
from attn_np.contract.longformer import Config


class LongformerAttention(Layer[Config]):
    """A window of neighbours, and a few positions that see all and are seen by all."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    w_q_global: Float[Array, "d h k"]
    w_k_global: Float[Array, "d h k"]
    w_v_global: Float[Array, "d h v"]
    b_q_global: Float[Array, "h k"] | None
    b_k_global: Float[Array, "h k"] | None
    b_v_global: Float[Array, "h v"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        global_mask: Bool[Array, "..."] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, global_mask=global_mask, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        is_global = broadcast_to(arange(1, query) > 0 if global_mask is None else global_mask, (sizes["b"], sizes["t"]))
        # Each query belongs to one of the two patterns and sees no key in the other.
        window, from_global = Window(c.half_window, c.half_window), GlobalQueries(is_global)
        local = (window | GlobalKeys(is_global)) & Not(from_global)
        query, key, value = call.inputs(pattern=window | GlobalKeys(is_global) | from_global)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        q_global = linear("btd,dhk->bthk", query, self.w_q_global, self.b_q_global)
        k_global = linear("bsd,dhk->bshk", key, self.w_k_global, self.b_k_global)
        v_global = linear("bsd,dhv->bshv", value, self.w_v_global, self.b_v_global)
        local_context = call.attend(q, k, v, part="local", pattern=local)
        global_context = call.attend(q_global, k_global, v_global, part="global", pattern=from_global)
        context = record(tape, context=local_context + global_context)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
