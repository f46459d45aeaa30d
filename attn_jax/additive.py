"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

from jaxtyping import Bool, Float

from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import hide_neg_inf, zero_unseen_inputs
from attn_jax._ops import Array, Tape, dropout, dtype_name, einsum, record, softmax, tanh, upcast
from attn_jax._rows import attend_in_row_blocks
from attn_np.contract._attend import SOFTMAX_AXIS
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
        masking = {"causal": c.causal, "step": step}
        query, key, value = zero_unseen_inputs(tape, "bts", query, key, value, mask=mask, **masking)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["s"]), like=query)
        q = einsum("btd,de->bte", query, self.w_q)
        k = einsum("bsi,ie->bse", key, self.w_k)
        k, v = append(step, k=k, v=value)
        # A softmax over the queries needs all rows at once. A block holds b t s e numbers. It may have one row: no
        # matrix product gains from more.
        context, probs = attend_in_row_blocks(
            self.attend_rows, tape, q, k, v, mask=mask, **masking, return_weights=return_weights,
            implementation="auto" if c.normalize_over == "keys" else "textbook", scores_per_pair=sizes["e"], min_rows=1,
            bias=bias, keep=keep,
        )  # fmt: skip
        y = record(tape, y=context)
        return cast_output(dtype, y, probs, return_weights)

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
