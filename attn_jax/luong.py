"""Luong attention: a query is compared with all keys, or few, by a dot product, a matrix or a small network."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.attention.masks import broadcast_mask, hide_neg_inf, zero_unseen
from attn_jax.frame.call import AttentionCall, RowOptions
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    Tape,
    arange,
    cumsum,
    dropout,
    einsum,
    exp,
    record,
    sigmoid,
    softmax,
    tanh,
    upcast,
)
from attn_jax.positions.relative import as_floats
from attn_np.contract.luong import Config

# Queries at least in a block that projects its own keys: for fewer, projecting takes as long as scoring.
MIN_ROWS_TO_PROJECT = 8


def number_visible_keys(allowed: Array | None, like: Array, shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """The keys that each query sees, `b t s`; their positions among these, from 1; and how many they are."""
    visible = broadcast_mask(allowed, shape, like)
    return visible, cumsum(visible, 2), visible.sum(2)


class LuongAttention(Layer[Config]):
    """A query is compared with all keys, or few, by a dot product, a matrix or a small network."""

    w: Float[Array, "d i"] | None
    w_q: Float[Array, "d e"] | None
    w_k: Float[Array, "i e"] | None
    w_score: Float[Array, "e"] | None
    w_position: Float[Array, "d m"] | None
    w_center: Float[Array, "m"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        **options: Unpack[RowOptions],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        c, sizes = self.config, call.sizes
        query, key, value = call.inputs()
        # Keys are projected once; but with a window, in a full pass, in each block of rows, after the keys that the
        # block does not see are set to 0.
        keys_projected, k = call.step is not None or c.half_window is None, key
        if keys_projected and self.w_k is not None:
            k = einsum("bsi,ie->bse", key, self.w_k)

        def attend_rows(*arrays: Any, **score_arrays: Any) -> tuple[Array, Array]:
            return self.attend_rows(*arrays, **score_arrays, keys_projected=keys_projected)

        more: Any = {}
        if self.w_score is not None:  # a pair has a number for each hidden unit
            more = {"scores_per_pair": sizes["e"], "min_rows": 1 if keys_projected else MIN_ROWS_TO_PROJECT}
        # p_t = t: queries and keys are counted from 1, hidden keys are not counted.
        query_number = (arange(sizes["t"], query) + 1)[None, :, None] if c.local == "m" and not c.causal else None
        return call.end(call.attend_in_rows(attend_rows, query, k, value, **more, query_number=query_number))

    def attend_rows(
        self,
        tape: Tape,
        query: Array,
        key: Array,
        value: Array,
        allowed: Array | None,
        relative_position: Array | None,
        query_number: Array | None,
        bias: Array | None,
        keep: Array | None,
        keys_projected: bool,
    ) -> tuple[Array, Array]:
        """The context and the weights of some queries, as `attend_in_row_blocks` asks for them."""
        c, gaussian = self.config, None
        allowed = record(tape, allowed=allowed)
        bias, keep = record(tape, bias=upcast(bias), keep=keep)
        visible = hide_neg_inf(allowed, bias)
        if c.half_window is not None:
            shape = query.shape[0], query.shape[1], key.shape[1]
            visible, key_number, visible_key_count = number_visible_keys(visible, query, shape)
            if self.w_position is not None and self.w_center is not None:
                visible_key_count = record(tape, length=as_floats(visible_key_count, query))
                center_features = record(tape, center_features=tanh(einsum("btd,dm->btm", query, self.w_position)))
                center_share = record(tape, center_share=sigmoid(einsum("btm,m->bt", center_features, self.w_center)))
                center = record(tape, center=visible_key_count * center_share)
                offset = record(tape, offset=as_floats(key_number, query) - center[:, :, None])
                # exp(-(s - p_t)^2 / (2 sigma^2)) with sigma = half_window / 2.
                gaussian = record(tape, gaussian=exp(offset * offset * (-2.0 / c.half_window**2)))
            else:
                # A causal query is at the last key that it sees.
                offset = key_number - (visible_key_count[:, :, None] if query_number is None else query_number)
            visible = visible & (offset <= c.half_window) & (offset >= -c.half_window)
            # A cached value outside the windows of these queries may be NaN.
            query = zero_unseen("bts->btd", visible, query)
            key, value = zero_unseen("bts->bsi", visible, key), zero_unseen("bts->bsv", visible, value)
        query, key, value = record(tape, block_query=query, block_key=key, block_value=value)
        if self.w_q is not None and self.w_k is not None and self.w_score is not None:
            # W [q; k] = w_q^T q + w_k^T k: the query's half is computed once, not again for every key.
            q = einsum("btd,de->bte", query, self.w_q)
            k = key if keys_projected else einsum("bsi,ie->bse", key, self.w_k)
            q, k = record(tape, q=q, k=k)
            # b t 1 e + b 1 s e -> b t s e: every query meets every key.
            features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
            scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        else:
            # Without a matrix queries are as wide as keys.
            q = query if self.w is None else record(tape, q=einsum("btd,di->bti", query, self.w))
            scores = record(tape, scores=einsum("bti,bsi->bts", q, key))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        probs = softmax(scores, visible)
        if gaussian is not None:
            probs = record(tape, align=probs) * gaussian
        probs = record(tape, probs=probs)
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        context = record(tape, context=einsum("bts,bsv->btv", kept, value))
        return context, probs
