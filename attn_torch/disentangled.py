"""Disentangled attention (DeBERTa): contents look at contents, contents at positions, and positions at contents."""

from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_np.contract.disentangled import Config
from attn_torch.attention.far_keys import attend_near_and_far, with_lse
from attn_torch.attention.masks import hide_neg_inf, zero_unseen
from attn_torch.frame.call import AttentionCall, RowOptions
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import (
    Array,
    Tape,
    clip,
    concatenate,
    dropout,
    einsum,
    gather_last,
    layer_norm,
    linear,
    record,
    softmax,
    softmax_and_lse,
    take,
    upcast,
    zeros,
)
from attn_torch.positions.relative import (
    is_by_diagonal,
    relative_scores_of_keys,
    relative_scores_per_head,
    signed_bucket_table,
)


def table_row_numbers(c: Config, relative_position: Array) -> tuple[Array, Array]:
    """The row indices of relative positions (key minus query) in the table: those for c2p, those for p2c."""
    limit, span = c.max_distance, c.span()
    c2p_offset = -relative_position
    if c.buckets_per_side is not None:
        c2p_offset = signed_bucket_table(c, like=c2p_offset)[clip(c2p_offset, -limit, limit) + limit]
    # Equation 3: position to content takes the position as seen from the key, which has the other sign.
    p2c_offset = -c2p_offset if c.p2c_view == "key" else c2p_offset
    return clip(c2p_offset + span, 0, 2 * span - 1), clip(p2c_offset + span, 0, 2 * span - 1)


class DisentangledAttention(Layer[Config]):
    """Contents look at contents, contents at positions, and positions at contents."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_rel: Float[Array, "x d"]
    w_rel_norm: Float[Array, "d"] | None
    b_rel: Float[Array, "d"] | None
    w_rel_k: Float[Array, "d h k"] | None
    w_rel_q: Float[Array, "d h k"] | None
    b_rel_k: Float[Array, "h k"] | None
    b_rel_q: Float[Array, "h k"] | None
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[RowOptions],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        query, key, value = call.inputs()
        # Upcast once for all terms: in 16 bits, too, their gradients add up before they are rounded.
        w_q, b_q, w_k, b_k, rel = (upcast(p) for p in (self.w_q, self.b_q, self.w_k, self.b_k, self.w_rel))
        q = linear("btd,dhk->bthk", query, w_q, b_q)
        k = linear("bsi,ihk->bshk", key, w_k, b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        rel_k = rel_q = None
        if self.w_rel_norm is not None:
            rel = record(tape, rel=layer_norm(rel, self.w_rel_norm, self.b_rel, c.norm_eps))
        if "c2p" in c.score_terms:
            w_rel_proj, b_rel_proj = (w_k, b_k) if self.w_rel_k is None else (self.w_rel_k, self.b_rel_k)
            rel_k = record(tape, rel_k=linear("xd,dhk->xhk", rel, w_rel_proj, b_rel_proj))
        if "p2c" in c.score_terms:
            w_rel_proj, b_rel_proj = (w_q, b_q) if self.w_rel_q is None else (self.w_rel_q, self.b_rel_q)
            rel_q = record(tape, rel_q=linear("xd,dhk->xhk", rel, w_rel_proj, b_rel_proj))

        scale = 1 / sqrt(sizes["k"] * (1 + len(c.score_terms))) if c.scale is None else c.scale

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
            c2p_index, p2c_index = table_row_numbers(c, relative_position)
            terms = [record(tape, content_scores=einsum("bthk,bshk->bhts", q, k))]
            if rel_k is not None:
                c2p_index = record(tape, relative_index=c2p_index)
                c2p_scores = relative_scores_per_head(tape, "c2p_relative_scores", q, rel_k, c2p_index, k.shape[1])
                terms += [record(tape, c2p_scores=c2p_scores)]
            if rel_q is not None:
                p2c_index = record(tape, key_relative_index=p2c_index.swapaxes(1, 2))  # the key's position first
                if is_by_diagonal(relative_position, k.shape[1]):
                    p2c_scores = relative_scores_of_keys(k, rel_q, p2c_index.swapaxes(1, 2), q.shape[1])
                else:
                    relative_scores = record(tape, p2c_relative_scores=einsum("bshk,xhk->bhsx", k, rel_q))
                    p2c_scores = gather_last(relative_scores, p2c_index).swapaxes(2, 3)
                terms += [record(tape, p2c_scores=p2c_scores)]
            scores = record(tape, scores=sum(terms[1:], start=terms[0]) * scale)
            if bias is not None:
                scores = record(tape, biased=scores + bias)
            visible = hide_neg_inf(allowed, bias)
            probs, lse = softmax_and_lse(scores, visible) if return_lse else (softmax(scores, visible), None)
            probs = record(tape, probs=probs)
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context if lse is None else with_lse(context, lse), probs

        def add_far_position(q: Array, k: Array, v: Array, relative_position: Array) -> tuple[Array, Array, Array]:
            c2p_index, p2c_index = table_row_numbers(c, relative_position)
            keys = k if rel_k is None else k + take(rel_k, c2p_index)
            if rel_q is not None:  # one more column: what the key adds whatever the query
                key_terms = einsum("bshk,xhk->bshx", k, take(rel_q, p2c_index))
                q, keys = concatenate([q, zeros((*q.shape[:3], 1), q) + 1.0], -1), concatenate([keys, key_terms], -1)
            return q, keys, v

        def attend_without_blocks(tape: Tape, q: Array, k: Array, v: Array, mask: Any, bias: Any) -> Any:
            options: Any = {"mask": mask, "bias": upcast(bias), "causal": c.causal, "scale": scale}
            return attend_near_and_far(
                attend_rows, add_far_position, tape, q, k, v, limit=c.max_distance, **options
            ), None

        context = call.attend_in_rows(
            attend_rows, q, k, v, block_size_factor=4, attend_without_blocks=attend_without_blocks
        )
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
