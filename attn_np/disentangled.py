"""Disentangled attention (DeBERTa): contents look at contents, contents at positions, and positions at contents."""

from functools import partial
from math import sqrt
from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.far_keys import attend_near_and_far, attend_near_and_far_vjp, with_lse, with_lse_vjp
from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract.disentangled import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, RowOptions
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
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
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    gather_last_vjp,
    layer_norm_vjp,
    linear_vjp,
    softmax_vjp,
    sum_grads,
    sum_to,
    take_vjp,
)
from attn_np.positions.relative import (
    is_by_diagonal,
    relative_scores_of_keys,
    relative_scores_of_keys_vjp,
    relative_scores_per_head,
    relative_scores_per_head_vjp,
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

    def __call__(
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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dcontext = record(tape, dcontext=dcontext)
        rel_k, rel_q = tape.get("rel_k"), tape.get("rel_q")
        scale = 1 / sqrt(self.w_q.shape[-1] * (1 + len(c.score_terms))) if c.scale is None else c.scale

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dbias, allowed, drel_k, drel_q = None, tape.get("allowed"), None, None
            q, k, v, probs, kept = (tape[name] for name in ("q", "k", "v", "probs", "kept"))
            dcontext, dlse = with_lse_vjp(dcontext, v.shape[-1])
            dkept, dv = einsum_vjp("bhts,bshv->bthv", kept, v, dcontext)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            dscores = softmax_vjp(probs, dprobs)
            if dlse is not None:  # ∂lse/∂s_j = p_j
                dscores = sum_grads(dscores, probs * dlse)
            if "bias" in tape:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(dscores, tape["bias"].shape)
            dscores = record(tape, dscores=dscores) * scale
            dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, record(tape, dcontent_scores=dscores))
            if rel_q is not None:
                dp2c = record(tape, dp2c_scores=dscores)
                relative_scores, p2c_index = tape.get("p2c_relative_scores"), tape["key_relative_index"]
                if relative_scores is None:
                    dk_rel, drel_q = relative_scores_of_keys_vjp(k, rel_q, p2c_index.swapaxes(1, 2), dp2c)
                else:
                    drelative_scores = gather_last_vjp(relative_scores, p2c_index, dp2c.swapaxes(2, 3))
                    drelative_scores = record(tape, dp2c_relative_scores=drelative_scores)
                    dk_rel, drel_q = einsum_vjp("bshk,xhk->bhsx", k, rel_q, drelative_scores)
                dk = sum_grads(dk, dk_rel)
            if rel_k is not None:
                dc2p = record(tape, dc2p_scores=dscores)
                dq_rel, drel_k = relative_scores_per_head_vjp(
                    tape, "c2p_relative_scores", q, rel_k, tape["relative_index"], dc2p
                )
                dq = sum_grads(dq, dq_rel)
            dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv)
            dq = zero_unseen("bhts->bthk", allowed, dq)
            dk, dv = zero_unseen("bhts->bshk", allowed, dk), zero_unseen("bhts->bshv", allowed, dv)
            return {"q": dq, "k": dk, "v": dv, "bias": dbias, "rel_k": drel_k, "rel_q": drel_q}

        def add_far_position_vjp(
            q: Array, k: Array, v: Array, relative_position: Array, dq: Array, dk: Array, dv: Array
        ) -> dict[str, Array]:
            c2p_index, p2c_index = table_row_numbers(c, relative_position)
            width, grads = q.shape[-1], {"q": dq, "k": dk, "v": dv}
            if rel_q is not None:
                grads["q"], dkey_terms, dk = dq[..., :width], dk[..., width:], dk[..., :width]
                dk_rel, drow = einsum_vjp("bshk,xhk->bshx", k, take(rel_q, p2c_index), dkey_terms)
                grads |= {"k": sum_grads(dk, dk_rel), "rel_q": take_vjp(rel_q, p2c_index, drow)}
            if rel_k is not None:
                grads["rel_k"] = take_vjp(rel_k, c2p_index, sum_to(dk, (1, *dk.shape[2:])))
            return grads

        without_blocks_vjp = partial(
            attend_near_and_far_vjp, attend_rows_vjp, add_far_position_vjp, limit=c.max_distance, causal=c.causal
        )
        dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext, without_blocks_vjp)
        drel_k, drel_q = dw.pop("rel_k"), dw.pop("rel_q")
        drel_proj, dw_rel, rel = {}, [], self.w_rel if self.w_rel_norm is None else tape["rel"]
        if "p2c" in c.score_terms:
            w_rel_proj, b_rel_proj = (self.w_q, self.b_q) if self.w_rel_q is None else (self.w_rel_q, self.b_rel_q)
            names = ("w_q", "b_q") if self.w_rel_q is None else ("w_rel_q", "b_rel_q")
            drel_q = record(tape, drel_q=drel_q)
            drel, drel_proj[names[0]], drel_proj[names[1]] = linear_vjp(
                "xd,dhk->xhk", rel, w_rel_proj, b_rel_proj, drel_q
            )
            dw_rel = [drel]
        if "c2p" in c.score_terms:
            w_rel_proj, b_rel_proj = (self.w_k, self.b_k) if self.w_rel_k is None else (self.w_rel_k, self.b_rel_k)
            names = ("w_k", "b_k") if self.w_rel_k is None else ("w_rel_k", "b_rel_k")
            drel_k = record(tape, drel_k=drel_k)
            drel, drel_proj[names[0]], drel_proj[names[1]] = linear_vjp(
                "xd,dhk->xhk", rel, w_rel_proj, b_rel_proj, drel_k
            )
            dw_rel = [*dw_rel, drel]
        dw["w_rel"] = sum_grads(*dw_rel)
        if self.w_rel_norm is not None:
            drel, names = record(tape, drel=dw["w_rel"]), ("w_rel", "w_rel_norm", "b_rel")
            dnorm = layer_norm_vjp(upcast(self.w_rel), self.w_rel_norm, self.b_rel, c.norm_eps, drel)
            dw |= dict(zip(names, dnorm, strict=True))
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        dw |= {
            name: dp if dw.get(name) is None else sum_grads(dw[name], dp)
            for name, dp in drel_proj.items()
            if dp is not None
        }
        return back.end(dquery, dkey, dvalue)
