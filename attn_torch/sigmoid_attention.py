"""Sigmoid attention: every key is weighed by itself, and the keys of a query do not compete."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract._weighing import Weighing
from attn_np.contract.sigmoid_attention import Config
from attn_torch.attention.masks import broadcast_mask
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import (
    Array,
    Tape,
    broadcast_to,
    constants,
    einsum,
    linear,
    log,
    maximum,
    record,
    sigmoid,
    where,
)


class SigmoidAttention(Layer[Config]):
    """Several heads attend in parallel; the weight of a key does not depend on other keys' scores."""

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
        weighing = Weighing("sigmoid", c.scale_or_default(call.sizes["k"]), c.softcap, c.score_offset)
        context = call.attend_by(self.weigh, q, k, v, weighing=weighing)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def weigh(self, tape: Tape, scores: Array, allowed: Array | None) -> Array:
        """The weights of a call's scores, each by itself."""
        if self.config.score_offset is None:
            # 1 for a visible key, else 0; one row serves all queries without a mask.
            one = constants([1.0], scores)
            if allowed is None:
                visible = broadcast_to(one, (1, 1, 1, scores.shape[-1]))
            else:
                visible = where(broadcast_mask(allowed, scores.shape, scores), one, 0.0)
            count = einsum("bhts,s->bht", visible, broadcast_to(one, (scores.shape[-1],)))
            shifted = scores - log(maximum(count, 1.0))[..., None]
        else:
            shifted = scores + self.config.score_offset
        if allowed is None:
            return sigmoid(record(tape, shifted=shifted))
        shifted = record(tape, shifted=where(allowed, shifted, 0.0))
        return where(allowed, sigmoid(shifted), 0.0)
