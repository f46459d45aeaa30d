"""Entmax attention: sparsemax, 1.5-entmax and what lies between, with weights of exactly 0 for keys that fit badly."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.entmax_attention import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.normalizers.simplex import entmax_over
from attn_torch.ops import Array, Tape, linear


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
        call = AttentionCall(self, query, key, value, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        context = call.attend_by(self.weigh, q, k, v, weighing=self.config.weighing(call.sizes["k"]))
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def weigh(self, tape: Tape, scores: Array, allowed: Array | None) -> Array:
        """The weights of a call's scores."""
        return entmax_over(scores, allowed, self.config.alpha, -1)
