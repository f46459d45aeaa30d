"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

import numpy as np
from jaxtyping import Bool, Float

from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output, prepare_inputs
from attn_np._masks import attention_mask, hide_by_bias
from attn_np._ops import Array, Tape, dropout, dtype_name, einsum, record, softmax, tanh, upcast
from attn_np._vjp import (
    Grads,
    cotangent,
    dropout_vjp,
    einsum_vjp,
    grads,
    prepare_inputs_vjp,
    softmax_vjp,
    sum_to,
    tanh_vjp,
)
from attn_np.contract._attend import AXES
from attn_np.contract.additive import Config


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
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        by_position = {"causal": c.causal, "step": step}
        query, key, value = prepare_inputs(tape, "bts", query, key, value, mask=mask, **by_position)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["s"]), like=query)
        bias, keep = record(tape, bias=upcast(bias), keep=keep)
        q = einsum("btd,de->bte", query, self.w_q)
        k = einsum("bsi,ie->bse", key, self.w_k)
        k, v = append(step, k=k, v=value)
        mask = attention_mask(mask, sizes["t"], k.shape[1], like=query, head_axis=False, **by_position)
        q, k, mask = record(tape, q=q, k=k, allowed=mask)
        # b t 1 e + b 1 s e -> b t s e: every query meets every key.
        features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
        scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        mask = hide_by_bias(mask, bias)
        probs = record(tape, probs=softmax(scores, mask, AXES[c.normalize_over]))
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        context = record(tape, context=einsum("bts,bsv->btv", kept, v))
        y = record(tape, y=context)
        return cast_output(dtype, y, probs, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t v"]) -> Grads:
        """The gradients, by the forward in reverse: one line here for each line there, with the same string."""
        c, dtype, w, dbias = self.config, dtype_name(dy), {}, None
        query, key, value = tape["seen_query"], tape["seen_key"], tape["seen_value"]
        features, probs, kept = tape["features"], tape["probs"], tape["kept"]
        dcontext = cotangent(tape, dy)
        dcontext = record(tape, dcontext=dcontext)
        dkept, dvalue = einsum_vjp("bts,bsv->btv", kept, value, dcontext)
        dkept = record(tape, dkept=dkept)
        dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
        dscores = softmax_vjp(probs, dprobs, AXES[c.normalize_over])
        if "bias" in tape:
            dscores = record(tape, dbiased=dscores)
            dbias = sum_to(dscores, tape["bias"].shape)
        dscores = record(tape, dscores=dscores)
        dfeatures, w["w_score"] = einsum_vjp("btse,e->bts", features, self.w_score, dscores)
        dfeatures = record(tape, dfeatures=dfeatures)
        dsum = tanh_vjp(features, dfeatures)
        # A query was broadcast over all keys and a key over all queries.
        dq, dk = record(tape, dq=np.sum(dsum, axis=2), dk=np.sum(dsum, axis=1))
        dkey, w["w_k"] = einsum_vjp("bsi,ie->bse", key, self.w_k, dk)
        dquery, w["w_q"] = einsum_vjp("btd,de->bte", query, self.w_q, dq)
        return grads(dtype, prepare_inputs_vjp(tape, "bts", dquery, dkey, dvalue) | {"bias": dbias}, w)
