"""Luong attention: a query is compared with all keys, or few, by a dot product, a matrix or a small network."""

from jaxtyping import Bool, Float

from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output, prepare_inputs
from attn_jax._masks import attention_mask, full_mask, hide_by_bias, zero_unseen
from attn_jax._ops import (
    Array,
    Tape,
    arange,
    cumsum,
    dropout,
    dtype_name,
    einsum,
    exp,
    record,
    sigmoid,
    softmax,
    tanh,
    to_dtype,
    upcast,
)
from attn_np.contract.luong import Config


def visible_positions(allowed: Array | None, like: Array, shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """The keys that each query sees, `b t s`; their positions among these, from 1; and how many they are."""
    visible = full_mask(allowed, shape, like)
    return visible, cumsum(visible, 2), visible.sum(2)


def zero_unseen_keys(tape: Tape, allowed: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Keys and values, with those that no query sees set to 0."""
    return record(
        tape, local_key=zero_unseen("bts->bsi", allowed, key), local_value=zero_unseen("bts->bsv", allowed, value)
    )


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
        b, t, s = sizes["b"], sizes["t"], sizes["s"]
        mask = attention_mask(mask, t, s, like=query, causal=c.causal, step=step, head_axis=False)
        # In a step the mask knows how many keys there are.
        allowed, shape = hide_by_bias(mask, bias), (b, t, s if step is None or mask is None else mask.shape[-1])
        if c.half_window is not None and self.w_center is None:
            allowed, key_number, length = visible_positions(allowed, query, shape)
            # p_t = t: queries and keys are counted from 1, hidden keys are not. A causal query is at the last key that
            # it sees.
            center = length[:, :, None] if c.causal else arange(t, query)[:, None] + 1
            offset = key_number - center
            mask = allowed = allowed & (offset <= c.half_window) & (offset >= -c.half_window)
        mask = record(tape, allowed=mask)
        query, key, value = prepare_inputs(tape, "bts", query, key, value, mask=mask, step=step)
        keep = self.draw_keep(keep, shape, like=query)
        bias, keep = record(tape, bias=upcast(bias), keep=keep)
        gaussian = None
        if c.half_window is not None and self.w_position is not None and self.w_center is not None:
            allowed, key_number, length = visible_positions(allowed, query, shape)
            length = record(tape, length=to_dtype(length, dtype_name(query)))
            center_features = record(tape, center_features=tanh(einsum("btd,dm->btm", query, self.w_position)))
            center_share = record(tape, center_share=sigmoid(einsum("btm,m->bt", center_features, self.w_center)))
            center = record(tape, center=length * center_share)
            offset = record(tape, offset=to_dtype(key_number, dtype_name(query)) - center[:, :, None])
            # exp(-(s - p_t)^2 / (2 sigma^2)) with sigma = half_window / 2.
            gaussian = record(tape, gaussian=exp(offset * offset * (-2.0 / c.half_window**2)))
            allowed = allowed & (offset <= c.half_window) & (offset >= -c.half_window)
            if step is None:
                key, value = zero_unseen_keys(tape, allowed, key, value)
        if self.w_q is not None and self.w_k is not None and self.w_score is not None:
            # W [q; k] = w_q^T q + w_k^T k: the query's half is computed once, not again for every key.
            q = einsum("btd,de->bte", query, self.w_q)
            k = einsum("bsi,ie->bse", key, self.w_k)
            k, v = append(step, k=k, v=value)
            q, k = record(tape, q=q, k=k)
            # b t 1 e + b 1 s e -> b t s e: every query meets every key.
            features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
            scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        else:
            # Without a matrix queries are as wide as keys.
            q = query if self.w is None else record(tape, q=einsum("btd,di->bti", query, self.w))
            k, v = append(step, k=key, v=value)
            scores = record(tape, scores=einsum("bti,bsi->bts", q, k))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        probs = softmax(scores, allowed)
        if gaussian is not None:
            probs = record(tape, align=probs) * gaussian
        probs = record(tape, probs=probs)
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        # A cached value outside the windows of these queries may be NaN.
        v = v if step is None else zero_unseen("bts->bsv", allowed, v)
        context = record(tape, context=einsum("bts,bsv->btv", kept, v))
        y = record(tape, y=context)
        return cast_output(dtype, y, probs, return_weights)
