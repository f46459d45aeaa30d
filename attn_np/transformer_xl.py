"""Transformer-XL's attention: contents and relative positions are scored apart, each with a bias of its own."""

from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.attend import attend_checked, attend_vjp
from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract.transformer_xl import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
    Array,
    Tape,
    broadcast_to,
    clip,
    concatenate,
    dropout,
    einsum,
    linear,
    record,
    softmax,
    upcast,
)
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    linear_vjp,
    softmax_vjp,
    sum_grads,
    sum_to,
)
from attn_np.positions.relative import (
    relative_scores_per_head,
    relative_scores_per_head_vjp,
    sinusoids,
    to_key_positions,
)


class TransformerXLAttention(Layer[Config]):
    """Contents and relative positions are scored apart, each with a bias of its own."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_r: Float[Array, "d h k"]
    b_content: Float[Array, "h k"]
    b_position: Float[Array, "h k"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = call.with_cached(k, v)
        low, high = 0 if c.causal else 1 - q.shape[1], k.shape[1]
        table = sinusoids(low, high, sizes["d"], c.base, like=q)
        rel = record(tape, rel=einsum("xd,dhk->xhk", table, self.w_r))

        def both_queries(tape: Tape, q: Array) -> Any:
            q_content, q_position = q + upcast(self.b_content), q + upcast(self.b_position)
            return record(tape, q_content=q_content, q_position=q_position)

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, bias: Any, keep: Any
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            q = zero_unseen("bhts->bthk", allowed, q)
            k, v = zero_unseen("bhts->bshk", allowed, k), zero_unseen("bhts->bshv", allowed, v)
            q, k, v = record(tape, q=q, k=k, v=v)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            query_minus_key = clip(-relative_position, low, high - 1)
            relative_index = record(tape, relative_index=query_minus_key - low)
            q_content, q_position = both_queries(tape, q)
            # Terms (a) and (c) of the paper; then (b) and (d) for every relative position, of which each pair takes
            # its own.
            content = einsum("bthk,bshk->bhts", q_content, k)
            position = relative_scores_per_head(tape, "relative_scores", q_position, rel, relative_index, k.shape[1])
            content, position = record(tape, content_scores=content, position_scores=position)
            scores = record(tape, scores=(content + position) * (1 / sqrt(sizes["k"]) if c.scale is None else c.scale))
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            probs = record(tape, probs=softmax(scores, hide_neg_inf(allowed, bias)))
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context, probs

        def attend_without_blocks(tape: Tape, q: Array, k: Array, v: Array, mask: Any, bias: Any) -> Any:
            t, s = q.shape[1], k.shape[1]
            q_content, q_position = both_queries(tape, q)
            key_sinusoids, query_sinusoids = (sinusoids(n, s, sizes["d"], c.base, like=q) for n in (0, s - t))
            position_features = to_key_positions(einsum("bthk,dhk->bthd", q_position, self.w_r), query_sinusoids)
            key_sinusoids = broadcast_to(key_sinusoids[:, None], (*k.shape[:3], sizes["d"]))
            q, k = concatenate([q_content, position_features], -1), concatenate([k, key_sinusoids], -1)
            scale = 1 / sqrt(sizes["k"]) if c.scale is None else c.scale
            return attend_checked(q, k, v, mask=mask, bias=upcast(bias), causal=c.causal, scale=scale, tape=tape)

        context = call.attend_in_rows(attend_rows, q, k, v, attend_without_blocks=attend_without_blocks)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        rel = tape["rel"]

        def attend_without_blocks_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            q_position, t, s = tape["q_position"], dcontext.shape[1], tape["k"].shape[1]
            scale = 1 / sqrt(q_position.shape[-1]) if c.scale is None else c.scale
            dq, dk, dv, dbias = attend_vjp(tape, dcontext, scale=scale)
            dq_content, dposition_features = dq[..., : q_position.shape[-1]], dq[..., q_position.shape[-1] :]
            query_sinusoids = sinusoids(s - t, s, c.d_model, c.base, like=dq)
            dabsolute_features = to_key_positions(dposition_features, query_sinusoids)
            dq_position, dw_r = einsum_vjp("bthk,dhk->bthd", q_position, self.w_r, dabsolute_features)
            dw = {"b_content": sum_to(dq_content, q_position.shape[2:])}
            dw |= {"b_position": sum_to(dq_position, q_position.shape[2:]), "w_r": dw_r}
            dq, dk = sum_grads(dq_content, dq_position), dk[..., : q_position.shape[-1]]
            return {"q": dq, "k": dk, "v": dv, "bias": dbias} | dw

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dparams: dict[str, Array | None] = {}
            dbias, allowed = None, tape.get("allowed")
            q_content, q_position = tape["q_content"], tape["q_position"]
            k, v, probs, kept = (tape[name] for name in ("k", "v", "probs", "kept"))
            dcontext = record(tape, dcontext=dcontext)
            dkept, dv = einsum_vjp("bhts,bshv->bthv", kept, v, dcontext)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            dscores = softmax_vjp(probs, dprobs)
            if "bias" in tape:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(dscores, tape["bias"].shape)
            dscores = record(tape, dscores=dscores) * (1 / sqrt(k.shape[-1]) if c.scale is None else c.scale)
            dcontent_scores, dposition_scores = record(tape, dcontent_scores=dscores, dposition_scores=dscores)
            dq_position, dparams["rel"] = relative_scores_per_head_vjp(
                tape, "relative_scores", q_position, rel, tape["relative_index"], dposition_scores
            )
            dq_content, dk = einsum_vjp("bthk,bshk->bhts", q_content, k, dcontent_scores)
            dq_content, dq_position = record(tape, dq_content=dq_content, dq_position=dq_position)
            dparams["b_content"] = sum_to(dq_content, q_content.shape[2:])
            dparams["b_position"] = sum_to(dq_position, q_position.shape[2:])
            dq, dk, dv = record(tape, dq=sum_grads(dq_content, dq_position), dk=dk, dv=dv)
            dq = zero_unseen("bhts->bthk", allowed, dq)
            dk, dv = zero_unseen("bhts->bshk", allowed, dk), zero_unseen("bhts->bshv", allowed, dv)
            return {"q": dq, "k": dk, "v": dv, "bias": dbias} | dparams

        dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext, attend_without_blocks_vjp)
        if "rel" in dw:
            low, high = 0 if c.causal else 1 - dq.shape[1], dk.shape[1]
            table = sinusoids(low, high, c.d_model, c.base, like=dk)
            _, dw["w_r"] = einsum_vjp("xd,dhk->xhk", table, self.w_r, record(tape, drel=dw.pop("rel")))
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
