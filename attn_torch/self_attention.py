"""Self-attention: every position of one sequence looks at all its positions, with a single head."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.self_attention import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, linear


class SelfAttention(Layer[Config]):
    """Every position of one sequence looks at all its positions, with a single head."""

    w_q: Float[Array, "d k"]
    w_k: Float[Array, "d k"]
    w_v: Float[Array, "d v"]
    w_o: Float[Array, "v o"] | None
    b_q: Float[Array, "k"] | None
    b_k: Float[Array, "k"] | None
    b_v: Float[Array, "v"] | None
    b_o: Float[Array, "o"] | None

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        call = AttentionCall(self, query, **options)
        query, key, value = call.inputs()
        q = linear("btd,dk->btk", query, self.w_q, self.b_q)
        k = linear("bsd,dk->bsk", key, self.w_k, self.b_k)
        v = linear("bsd,dv->bsv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        y = context if self.w_o is None else linear("btv,vo->bto", context, self.w_o, self.b_o)
        return call.end(y)
