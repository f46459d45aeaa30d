"""Attention with linear biases (ALiBi): a score falls with the distance between query and key."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.alibi import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, constants, linear, record
from attn_torch.positions.relative import as_floats


class AlibiAttention(Layer[Config]):
    """A score falls with the distance between query and key."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        c, call = self.config, AttentionCall(self, query, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)

        def relative_bias_fn(relative_position: Array) -> Array:
            distance = as_floats(abs(relative_position), q)
            # h 1 1 times b 1 t s, or times 1 1 1 n by diagonal
            return record(call.tape, alibi=-constants(c.slopes(), q)[:, None, None] * distance[:, None])

        context = call.attend(q, k, v, relative_bias_fn=relative_bias_fn)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
