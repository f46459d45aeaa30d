"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.masks import hide_neg_inf
from attn_np.contract._attend import SOFTMAX_AXIS
from attn_np.contract.additive import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, RowOptions
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, dropout, einsum, record, softmax, tanh, upcast
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    softmax_vjp,
    sum_to,
    tanh_vjp,
)


class AdditiveAttention(Layer[Config]):
    """A small network with one hidden layer scores each pair of a query and a key."""

    w_q: Float[Array, "d e"]
    w_k: Float[Array, "i e"]
    w_score: Float[Array, "e"]

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        **options: Unpack[RowOptions],
    ) -> Output:
        c, call = self.config, AttentionCall(self, query, key, value, **options)
        query, key, value = call.inputs()
        q = einsum("btd,de->bte", query, self.w_q)
        k = einsum("bsi,ie->bse", key, self.w_k)
        # A softmax over the queries needs all rows at once. A block holds b t s e numbers. It may have one row: no
        # matrix product gains from more.
        context = call.attend_in_rows(
            self.attend_rows, q, k, value, scores_per_pair=call.sizes["e"], min_rows=1,
            implementation="auto" if c.normalize_over == "keys" else "textbook",
        )  # fmt: skip
        return call.end(context)

    def attend_rows(
        self,
        tape: Tape,
        q: Array,
        k: Array,
        v: Array,
        allowed: Array | None,
        relative_position: Array | None,
        bias: Array | None,
        keep: Array | None,
    ) -> tuple[Array, Array]:
        """The context and the weights of some projected queries, as `attend_in_row_blocks` asks for them."""
        c = self.config
        q, k, v, allowed = record(tape, q=q, k=k, v=v, allowed=allowed)
        bias, keep = record(tape, bias=upcast(bias), keep=keep)
        # b t 1 e + b 1 s e -> b t s e: every query meets every key.
        features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
        scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        probs = record(tape, probs=softmax(scores, hide_neg_inf(allowed, bias), SOFTMAX_AXIS[c.normalize_over]))
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        context = record(tape, context=einsum("bts,bsv->btv", kept, v))
        return context, probs

    def vjp(self, tape: Tape, dy: Float[Array, "b t v"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        back = AttentionBackward(self, tape, dy)
        (query, key, _), dw = back.inputs, back.dw
        dq, dk, dvalue = back.attend_in_rows(self.attend_rows_vjp, back.dy)
        dkey, dw["w_k"] = einsum_vjp("bsi,ie->bse", key, self.w_k, dk)
        dquery, dw["w_q"] = einsum_vjp("btd,de->bte", query, self.w_q, dq)
        return back.end(dquery, dkey, dvalue)

    def attend_rows_vjp(self, tape: Tape, dcontext: Array) -> dict[str, Array | None]:
        """The gradients of `attend_rows`' arrays and of w_score: its lines in reverse."""
        c, dbias, bias, features, probs = self.config, None, tape.get("bias"), tape["features"], tape["probs"]
        dcontext = record(tape, dcontext=dcontext)
        dkept, dv = einsum_vjp("bts,bsv->btv", tape["kept"], tape["v"], dcontext)
        dkept = record(tape, dkept=dkept)
        dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
        dscores = softmax_vjp(probs, dprobs, SOFTMAX_AXIS[c.normalize_over])
        if bias is not None:
            dscores = record(tape, dbiased=dscores)
            dbias = sum_to(dscores, bias.shape)
        dscores = record(tape, dscores=dscores)
        dfeatures, dw_score = einsum_vjp("btse,e->bts", features, self.w_score, dscores)
        dfeatures = record(tape, dfeatures=dfeatures)
        dsum = tanh_vjp(features, dfeatures)
        # A query was broadcast over all keys and a key over all queries.
        dq, dk, dv = record(tape, dq=np.sum(dsum, axis=2), dk=np.sum(dsum, axis=1), dv=dv)
        return {"q": dq, "k": dk, "v": dv, "bias": dbias, "w_score": dw_score}
