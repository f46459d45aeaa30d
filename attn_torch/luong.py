"""Luong attention: a query meets every key in a dot product, through a matrix, or in a small network."""

from jaxtyping import Bool, Float

from attn_np.contract.luong import Config
from attn_torch._core import (
    Array,
    Layer,
    Output,
    Tape,
    dropout,
    dtype_name,
    einsum,
    inputs,
    output,
    record,
    shown,
    softmax,
    tanh,
    widen,
)


class LuongAttention(Layer[Config]):
    """A query meets every key in a dot product, through a matrix, or in a small network."""

    w: Float[Array, "d i"] | None
    w_q: Float[Array, "d e"] | None
    w_k: Float[Array, "i e"] | None
    w_score: Float[Array, "e"] | None

    def forward(  # twin: torch calls its entry point forward
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
    ) -> Output:
        n = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = inputs(tape, "bts", mask, query, key, value)
        keep = self.draw_keep(keep, (n["b"], n["t"], n["s"]), like=query)
        bias, keep = record(tape, bias=widen(bias), keep=keep)
        if self.w_q is not None and self.w_k is not None and self.w_score is not None:
            # W [q; k] = w_q^T q + w_k^T k: the query's half is multiplied once, not again for every key.
            q = einsum("btd,de->bte", query, self.w_q)
            k = einsum("bsi,ie->bse", key, self.w_k)
            q, k = record(tape, q=q, k=k)
            # b t 1 e + b 1 s e -> b t s e: every query meets every key.
            features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
            scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        else:
            # Without a matrix a query is as wide as the keys already.
            q = query if self.w is None else record(tape, q=einsum("btd,di->bti", query, self.w))
            scores = record(tape, scores=einsum("bti,bsi->bts", q, key))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        mask = shown(mask, bias)
        probs = record(tape, probs=softmax(scores, mask))
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        context = record(tape, context=einsum("bts,bsv->btv", kept, value))
        y = record(tape, y=context)
        return output(dtype, y, probs, return_weights)
