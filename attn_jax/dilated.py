"""Dilated attention: a window that skips positions, so that as many keys reach further back."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, linear
from attn_np.contract._patterns import Dilated
from attn_np.contract.dilated import Config


class DilatedAttention(Layer[Config]):
    """A window that skips positions, so that as many keys reach further back."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        c, call = self.config, AttentionCall(self, query, **options)
        left, right = (None, None) if c.steps is None else c.steps
        left, right = (None if n is None else n * c.dilation for n in (left, right))
        pattern = Dilated(c.dilation)
        query, key, value = call.inputs(window=(left, right), pattern=pattern)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
