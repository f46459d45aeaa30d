"""1.5-entmax attention: between softmax and sparsemax, with weights of exactly 0 and a smooth way to them."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract._weighing import Weighing
from attn_np.contract.entmax15 import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.normalizers.sparse import entmax15
from attn_torch.ops import Array, Tape, linear


def weigh(tape: Tape, scores: Array, allowed: Array | None) -> Array:
    """The weights of a call's scores."""
    return entmax15(scores, allowed)


class EntmaxAttention(Layer[Config]):
    """Several heads attend in parallel; keys that fit badly fade to a weight of exactly 0."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        c, call = self.config, AttentionCall(self, query, key, value, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        weighing = Weighing("entmax15", c.scale_or_default(call.sizes["k"]), c.softcap)
        context = call.attend_by(weigh, q, k, v, weighing=weighing)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
