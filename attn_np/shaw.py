"""Relative position representations (Shaw): a learned vector for each one is added to keys and values."""

from functools import partial
from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.far_keys import attend_near_and_far, attend_near_and_far_vjp, with_lse, with_lse_vjp
from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract.shaw import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, RowOptions
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
    Array,
    Tape,
    broadcast_to,
    clip,
    dropout,
    einsum,
    linear,
    record,
    softmax,
    softmax_and_lse,
    take,
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
    take_vjp,
)
from attn_np.positions.relative import (
    is_by_diagonal,
    relative_scores_shared,
    relative_scores_shared_vjp,
    relative_values,
    relative_values_vjp,
)


class ShawAttention(Layer[Config]):
    """A learned vector for each relative position is added to keys and values."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_rel_k: Float[Array, "x k"]
    w_rel_v: Float[Array, "x v"] | None
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

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
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)

        scale = 1 / sqrt(sizes["k"]) if c.scale is None else c.scale

        def attend_rows(
            tape: Tape,
            q: Array,
            k: Array,
            v: Array,
            allowed: Any,
            relative_position: Any,
            bias: Any,
            keep: Any,
            return_lse: bool = False,
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            q = zero_unseen("bhts->bthk", allowed, q)
            k, v = zero_unseen("bhts->bshk", allowed, k), zero_unseen("bhts->bshv", allowed, v)
            q, k, v = record(tape, q=q, k=k, v=v)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            relative_index = self.table_row_numbers(relative_position)
            if not is_by_diagonal(relative_index, k.shape[1]):
                relative_index = broadcast_to(relative_index, (*q.shape[:2], k.shape[1]))
            relative_index = record(tape, relative_index=relative_index)
            content = einsum("bthk,bshk->bhts", q, k)
            position = relative_scores_shared(tape, "rel_k", q, self.w_rel_k, relative_index, k.shape[1])
            content, position = record(tape, content_scores=content, position_scores=position)
            scores = record(tape, scores=(content + position) * scale)
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            visible = hide_neg_inf(allowed, bias)
            probs, lse = softmax_and_lse(scores, visible) if return_lse else (softmax(scores, visible), None)
            probs = record(tape, probs=probs)
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = einsum("bhts,bshv->bthv", kept, v)
            if self.w_rel_v is not None:
                context = context + relative_values(tape, "rel_v", kept, self.w_rel_v, relative_index)
            context = record(tape, context=context)
            return context if lse is None else with_lse(context, lse), probs

        def attend_without_blocks(tape: Tape, q: Array, k: Array, v: Array, mask: Any, bias: Any) -> Any:
            options: Any = {"mask": mask, "bias": upcast(bias), "causal": c.causal, "scale": scale}
            return attend_near_and_far(
                attend_rows, self.add_far_position, tape, q, k, v, limit=c.max_distance, **options
            ), None

        context = call.attend_in_rows(attend_rows, q, k, v, attend_without_blocks=attend_without_blocks)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def table_row_numbers(self, relative_position: Array) -> Array:
        """Equation 4 of the paper: key position minus query position, clipped on either side, shifted to begin at 0."""
        return clip(relative_position, -self.config.max_distance, self.config.max_distance) + self.config.max_distance

    def add_far_position(self, q: Array, k: Array, v: Array, relative_position: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values where every key is at this relative position."""
        row = self.table_row_numbers(relative_position)
        k = k + take(self.w_rel_k, row, fits=True)
        return q, k, v if self.w_rel_v is None else v + take(self.w_rel_v, row, fits=True)

    def add_far_position_vjp(
        self, q: Array, k: Array, v: Array, relative_position: Array, dq: Array, dk: Array, dv: Array
    ) -> dict[str, Array]:
        """The gradients of queries, keys, values and tables."""
        row, grads = self.table_row_numbers(relative_position), {"q": dq, "k": dk, "v": dv}
        grads["w_rel_k"] = take_vjp(self.w_rel_k, row, sum_to(dk, (1, dk.shape[-1])))
        if self.w_rel_v is not None:
            grads["w_rel_v"] = take_vjp(self.w_rel_v, row, sum_to(dv, (1, dv.shape[-1])))
        return grads

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dparams: dict[str, Array | None] = {}
            dbias, allowed = None, tape.get("allowed")
            q, k, v, relative_index, probs, kept = (
                tape[name] for name in ("q", "k", "v", "relative_index", "probs", "kept")
            )
            dcontext, dlse = with_lse_vjp(dcontext, v.shape[-1])
            dcontext = record(tape, dcontext=dcontext)
            dkept, dv = einsum_vjp("bhts,bshv->bthv", kept, v, dcontext)
            if self.w_rel_v is not None:
                dkept_rel, dparams["w_rel_v"] = relative_values_vjp(
                    tape, "rel_v", kept, self.w_rel_v, relative_index, dcontext
                )
                dkept = sum_grads(dkept, dkept_rel)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            dscores = softmax_vjp(probs, dprobs)
            if dlse is not None:  # ∂lse/∂s_j = p_j
                dscores = sum_grads(dscores, probs * dlse)
            if "bias" in tape:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(dscores, tape["bias"].shape)
            dscores = record(tape, dscores=dscores) * (1 / sqrt(q.shape[-1]) if c.scale is None else c.scale)
            dcontent_scores, dposition_scores = record(tape, dcontent_scores=dscores, dposition_scores=dscores)
            dq_rel, dparams["w_rel_k"] = relative_scores_shared_vjp(
                tape, "rel_k", q, self.w_rel_k, relative_index, dposition_scores
            )
            dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, dcontent_scores)
            dq, dk, dv = record(tape, dq=sum_grads(dq, dq_rel), dk=dk, dv=dv)
            dq = zero_unseen("bhts->bthk", allowed, dq)
            dk, dv = zero_unseen("bhts->bshk", allowed, dk), zero_unseen("bhts->bshv", allowed, dv)
            return {"q": dq, "k": dk, "v": dv, "bias": dbias} | dparams

        without_blocks_vjp = partial(
            attend_near_and_far_vjp, attend_rows_vjp, self.add_far_position_vjp, limit=c.max_distance, causal=c.causal
        )
        dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext, without_blocks_vjp)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
