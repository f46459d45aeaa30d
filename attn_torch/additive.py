"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract._attend import SOFTMAX_AXIS
from attn_np.contract.additive import Config
from attn_torch.attention.masks import hide_neg_inf
from attn_torch.frame.call import AttentionCall, RowOptions
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, Tape, dropout, einsum, record, softmax, tanh, upcast


class AdditiveAttention(Layer[Config]):
    """A small network with one hidden layer scores each pair of a query and a key."""

    w_q: Float[Array, "d e"]
    w_k: Float[Array, "i e"]
    w_score: Float[Array, "e"]

    def forward(
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
