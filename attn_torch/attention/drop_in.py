"""Attention as PyTorch and JAX are called for it: their arguments, axes and meaning, computed by `attend`."""

from typing import Any

from attn_np.contract import _drop_in as drop_in_contract
from attn_torch.attention.attend import attend
from attn_torch.attention.functions import to_python_scalar
from attn_torch.attention.masks import in_window
from attn_torch.ops import (
    Array,
    any_over,
    arange,
    broadcast_to,
    dtype_name,
    repeat_heads,
    to_dtype,
    upcast,
    where,
)
from attn_torch.ops.specs import checked_specs


def window_mask(t: int, s: int, left: int | None, right: int | None, *, like: Array) -> Array:
    """Whether a query sees a key, `t s`, where both are counted from 0: query i is at position i, whatever s is."""
    return in_window(arange(t, like)[None, :], arange(s, like)[None, :], left, right)[0]


def as_bthk(x: Array, batch: tuple[int, ...], heads: int) -> Array:
    """`... h t k` as `b t h k`, with the batch axes broadcast and made one."""
    lead = (1,) * (len(batch) + 3 - x.ndim)
    x = broadcast_to(x.reshape((*lead, *x.shape)), (*batch, heads, *x.shape[-2:]))
    return x.reshape((drop_in_contract.merged_batch_size(batch), heads, *x.shape[-2:])).swapaxes(1, 2)


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    keep: Array | None = None,
) -> Array:
    """`torch.nn.functional.scaled_dot_product_attention`, with its axes: `... h t k`, `... h s k`, `... h s v`.

    A query that sees no key gets zeros, as in PyTorch.

    Args:
        query, key, value: at least two axes each; batch axes are broadcast.
        attn_mask: broadcastable to the scores `... h t s`: bool, True = may attend, or float, added to the scores.
        dropout_p: share of the weights that `keep` drops; the others are divided by 1 - dropout_p.
        is_causal: query i sees the keys 0 .. i, also where there are more keys than queries.
        scale: 1/sqrt(K) by default.
        enable_gqa: several heads of queries may share one of keys and values.
        keep: True = not dropped; needed with `dropout_p`.

    Raises:
        ValueError: shapes that do not fit, or values that mean nothing here.
        TypeError: dtypes that do not fit.
    """
    array_specs = checked_specs(
        drop_in_contract.TORCH_FUNCTION, query=query, key=key, value=value, attn_mask=attn_mask, keep=keep
    )
    dropout_p, scale = to_python_scalar(dropout_p), to_python_scalar(scale)
    batch, heads, kv_heads = drop_in_contract.checked_torch_sizes(
        array_specs,
        dropout_p=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        scale=scale,
        has_keep=keep is not None,
    )
    q = as_bthk(query, batch, heads)
    k, v = as_bthk(key, batch, kv_heads), as_bthk(value, batch, kv_heads)
    mask, keep = merge_batch_axes(attn_mask, batch), merge_batch_axes(keep, batch)
    is_bool = mask is not None and dtype_name(mask) == "bool"
    mask, bias = (mask, None) if is_bool else (None, mask)
    t, s = q.shape[1], k.shape[1]
    if is_causal and t != s:
        mask, is_causal = window_mask(t, s, None, 0, like=q), False
    options: dict[str, Any] = {"causal": is_causal, "scale": scale, "keep": keep, "rate": float(dropout_p)}
    context = attend(q, k, v, mask=mask, bias=bias, **options)[0]
    context = context.swapaxes(1, 2)
    rank = max(query.ndim, key.ndim, value.ndim)
    return context.reshape((*batch, *context.shape[1:])[-rank:] if rank > 2 else context.shape[2:])


def merge_batch_axes(mask: Array | None, batch: tuple[int, ...]) -> Array | None:
    """A mask or bias `... h t s` with its batch axes made one, where it has several."""
    shape = None if mask is None else drop_in_contract.merged_mask_shape(tuple(mask.shape), batch)
    if mask is None or shape is None:
        return mask
    lead = (1,) * (len(shape) - mask.ndim)
    mask = mask.reshape((*lead, *mask.shape))
    return broadcast_to(mask, shape).reshape((drop_in_contract.merged_batch_size(batch), *shape[-3:]))


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Array:
    """`jax.nn.dot_product_attention`, with its axes: `b t h k`, `b s g k`, `b s g v`, or all without `b`.

    A query that sees no key gets the mean of all values, as in JAX, and zeros beyond its sequence's length. A bias of
    -inf hides a key; where it hides all of them the result is zeros here, NaN in JAX.

    Args:
        query, key, value: several heads of queries may share one of keys and values.
        bias: added to the scaled scores; broadcastable to `b h t s`.
        mask: True = may attend; broadcastable to `b h t s`.
        scale: 1/sqrt(K) by default.
        is_causal: query i sees the keys 0 .. i, also where there are more keys than queries.
        query_seq_lengths: `b`, how many queries of a sequence are real.
        key_value_seq_lengths: `b`, how many keys of a sequence are real.
        local_window_size: how many keys before and after its own position a query sees: one number, or two.
        implementation: None or "xla", which choose nothing here.
        return_residual: only False; True is refused.

    Raises:
        ValueError: shapes that do not fit, or values that mean nothing here.
        TypeError: dtypes that do not fit.
    """
    lengths = {"query_seq_lengths": query_seq_lengths, "key_value_seq_lengths": key_value_seq_lengths}
    scale = to_python_scalar(scale)
    left, right = drop_in_contract.checked_jax_window(
        checked_specs(
            drop_in_contract.JAX_FUNCTION, query=query, key=key, value=value, bias=bias, mask=mask, **lengths),
        is_causal=is_causal, window=local_window_size, implementation=implementation,
        return_residual=return_residual, scale=scale,
    )  # fmt: skip
    q, k, v = (x if x.ndim == 4 else x[None] for x in (query, key, value))
    t, s = q.shape[1], k.shape[1]
    options: dict[str, Any] = {"scale": scale, "bias": bias}
    has_window = left is not None or right is not None
    if mask is None and query_seq_lengths is None and key_value_seq_lengths is None and (t == s or not has_window):
        context = attend(q, k, v, window=(left, right) if has_window else None, **options)[0]
        return context if query.ndim == 4 else context[0]
    allowed = window_mask(t, s, left, right, like=q)
    allowed = allowed if mask is None else allowed & mask
    allowed = allowed.reshape((*(1,) * (4 - allowed.ndim), *allowed.shape))
    real_queries = arange(t, q)[None, :, None, None] >= 0
    if query_seq_lengths is not None:
        real_queries = arange(t, q)[None, :, None, None] < query_seq_lengths[:, None, None, None]
        allowed = allowed & real_queries.swapaxes(1, 2)
    if key_value_seq_lengths is not None:
        allowed = allowed & (arange(s, q)[None, None, None, :] < key_value_seq_lengths[:, None, None, None])
    context = attend(q, k, v, mask=allowed, **options)[0]
    sees_key = any_over(allowed, (3,)).swapaxes(1, 2)[..., None]
    mean = repeat_heads(to_dtype(upcast(v).sum(1) / s, dtype_name(v))[:, None], q)
    context = where(real_queries, where(sees_key, context, mean), 0.0)
    return context if query.ndim == 4 else context[0]
