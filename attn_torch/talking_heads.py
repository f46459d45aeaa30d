"""Talking-heads attention: learned maps across the heads, before and after the softmax."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_np.contract._weighing import Weighing
from attn_np.contract.talking_heads import Config
from attn_torch.attention.masks import hide_neg_inf, zero_unseen
from attn_torch.frame.call import AttentionCall, RowOptions
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, Tape, dropout, einsum, linear, record, softmax, tanh, upcast


class TalkingHeadsAttention(Layer[Config]):
    """Learned maps across the heads, before and after the softmax."""

    w_q: Float[Array, "d g k"]
    w_k: Float[Array, "i g k"]
    w_v: Float[Array, "j g v"]
    w_o: Float[Array, "g v o"]
    b_q: Float[Array, "g k"] | None
    b_k: Float[Array, "g k"] | None
    b_v: Float[Array, "g v"] | None
    b_o: Float[Array, "o"] | None
    w_mix_scores: Float[Array, "g h"] | None
    w_mix_weights: Float[Array, "h g"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[RowOptions],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, sizes = self.config, call.sizes
        query, key, value = call.inputs()
        q = linear("btd,dgk->btgk", query, self.w_q, self.b_q)
        k = linear("bsi,igk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)

        scale = sizes["k"] ** -0.5 if c.scale is None else c.scale

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, bias: Any, keep: Any
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            q, k, v = (
                zero_unseen("bhts->btgk", allowed, q),
                zero_unseen("bhts->bsgk", allowed, k),
                zero_unseen("bhts->bsgv", allowed, v),
            )
            q, k, v = record(tape, q=q, k=k, v=v)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            scores = record(tape, scores=einsum("btgk,bsgk->bgts", q * scale, k))
            if self.w_mix_scores is not None:
                scores = record(tape, mixed_scores=einsum("gh,bgts->bhts", self.w_mix_scores, scores))
            if c.softcap is not None:
                scores = record(tape, capped=c.softcap * tanh(scores / c.softcap))
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            probs = record(tape, probs=softmax(scores, hide_neg_inf(allowed, bias)))
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            mixed_weights = kept
            if self.w_mix_weights is not None:
                mixed_weights = record(tape, mixed_weights=einsum("hg,bhts->bgts", self.w_mix_weights, kept))
            context = record(tape, context=einsum("bgts,bsgv->btgv", mixed_weights, v))
            return context, probs

        context = call.attend_in_rows(
            attend_rows,
            q,
            k,
            v,
            weighing=Weighing("softmax", scale, c.softcap),
            w_mix_scores=upcast(self.w_mix_scores),
            w_mix_weights=upcast(self.w_mix_weights),
        )
        return call.end(linear("btgv,gvo->bto", context, self.w_o, self.b_o))
