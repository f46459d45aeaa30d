"""Talking-heads attention: learned maps across the heads, before and after the softmax."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract._weighing import Weighing
from attn_np.contract.talking_heads import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, RowOptions
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, dropout, einsum, linear, record, softmax, tanh, upcast
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    linear_vjp,
    softmax_vjp,
    sum_to,
    tanh_vjp,
)


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

    def __call__(
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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("btgv,gvo->bto", tape["context"], self.w_o, self.b_o, dy)

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dparams: dict[str, Array | None] = {}
            dbias, allowed, bias = None, tape.get("allowed"), tape.get("bias")
            q, k, v, scores, probs, kept = (tape[name] for name in ("q", "k", "v", "scores", "probs", "kept"))
            scale = q.shape[-1] ** -0.5 if c.scale is None else c.scale
            dcontext = record(tape, dcontext=dcontext)
            mixed_weights = kept if self.w_mix_weights is None else tape["mixed_weights"]
            dkept, dv = einsum_vjp("bgts,bsgv->btgv", mixed_weights, v, dcontext)
            if self.w_mix_weights is not None:
                dmixed_weights = record(tape, dmixed_weights=dkept)
                dparams["w_mix_weights"], dkept = einsum_vjp("hg,bhts->bgts", self.w_mix_weights, kept, dmixed_weights)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            dscores = softmax_vjp(probs, dprobs)
            if bias is not None:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(dscores, bias.shape)
            if c.softcap is not None:
                dscores = record(tape, dcapped=dscores)
                dscores = tanh_vjp(tape["capped"] / c.softcap, dscores)
            if self.w_mix_scores is not None:
                dmixed_scores = record(tape, dmixed_scores=dscores)
                dparams["w_mix_scores"], dscores = einsum_vjp("gh,bgts->bhts", self.w_mix_scores, scores, dmixed_scores)
            dscores = record(tape, dscores=dscores)
            dq, dk = einsum_vjp("btgk,bsgk->bgts", q * scale, k, dscores)
            dq, dk, dv = record(tape, dq=dq * scale, dk=dk, dv=dv)
            dq, dk, dv = (
                zero_unseen("bhts->btgk", allowed, dq),
                zero_unseen("bhts->bsgk", allowed, dk),
                zero_unseen("bhts->bsgv", allowed, dv),
            )
            return {"q": dq, "k": dk, "v": dv, "bias": dbias} | dparams

        dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jgv->bsgv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,igk->bsgk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dgk->btgk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
