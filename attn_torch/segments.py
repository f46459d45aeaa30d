"""Segmented attention: several documents packed into one sequence, none of which sees another."""

from typing import Unpack

from jaxtyping import Float, Int

from attn_np.contract._patterns import Documents
from attn_np.contract.segments import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, linear


class SegmentedAttention(Layer[Config]):
    """Several documents packed into one sequence, none of which sees another."""

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
        segments: Int[Array, "b t"],
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, segments=segments, **options)
        documents = Documents(segments, call.cached(segments=segments))
        query, key, value = call.inputs(pattern=documents)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
