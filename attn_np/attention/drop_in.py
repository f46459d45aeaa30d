"""Attention as PyTorch and JAX are called for it: their arguments, axes and meaning, computed by `attend`."""

from typing import Any

from attn_np.attention.attend import attend, attend_vjp
from attn_np.attention.functions import to_python_scalar
from attn_np.attention.masks import in_window
from attn_np.contract import _drop_in as drop_in_contract
from attn_np.ops import (
    Array,
    Tape,
    any_over,
    arange,
    broadcast_to,
    dtype_name,
    record,
    repeat_heads,
    to_dtype,
    upcast,
    where,
)
from attn_np.ops.specs import checked_specs
from attn_np.ops.vjp import defvjp, repeat_heads_vjp, sum_to


def window_mask(t: int, s: int, left: int | None, right: int | None, *, like: Array) -> Array:
    """Whether a query sees a key, `t s`, where both are counted from 0: query i is at position i, whatever s is."""
    return in_window(arange(t, like)[None, :], arange(s, like)[None, :], left, right)[0]


def as_bthk(x: Array, batch: tuple[int, ...], heads: int) -> Array:
    """`... h t k` as `b t h k`, with the batch axes broadcast and made one."""
    lead = (1,) * (len(batch) + 3 - x.ndim)
    x = broadcast_to(x.reshape((*lead, *x.shape)), (*batch, heads, *x.shape[-2:]))
    return x.reshape((drop_in_contract.merged_batch_size(batch), heads, *x.shape[-2:])).swapaxes(1, 2)


def as_bthk_vjp(dx: Array, batch: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The gradient of an array of a shape from that of `as_bthk` of it."""
    dx = dx.swapaxes(1, 2)
    return sum_to(dx.reshape((*batch, *dx.shape[1:])), (1,) * (len(batch) + 3 - len(shape)) + shape).reshape(shape)


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
    tape: Tape = None,  # only in NumPy: JAX and PyTorch differentiate the function itself
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
    options["tape"] = tape  # only in NumPy: the backward pass reads it
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


@defvjp(scaled_dot_product_attention)
def scaled_dot_product_attention_call_vjp(
    tape: Tape,
    dy: Array,
    *,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
    **_: Any,
) -> dict[str, Array | None]:
    """The gradients of query, key, value and a float mask."""
    array_specs = checked_specs(drop_in_contract.TORCH_FUNCTION, query=query, key=key, value=value, attn_mask=attn_mask)
    batch, heads, kv_heads = drop_in_contract.checked_heads_first_sizes(
        drop_in_contract.TORCH_FUNCTION, array_specs, "attn_mask", may_share_heads=enable_gqa
    )
    dy = as_bthk(dy, batch, heads)
    dq, dk, dv, dbias = attend_vjp(tape, dy, scale=to_python_scalar(scale), rate=float(dropout_p), kv_heads=kv_heads)
    gradients: dict[str, Array | None] = {
        name: as_bthk_vjp(dx, batch, x.shape)
        for name, dx, x in (("query", dq, query), ("key", dk, key), ("value", dv, value))
    }
    if dbias is None or attn_mask is None:
        return gradients
    shape = drop_in_contract.merged_mask_shape(attn_mask.shape, batch)
    lead = (1,) * (0 if shape is None else len(shape) - attn_mask.ndim)
    dbias = dbias if shape is None else sum_to(dbias.reshape(shape), (*lead, *attn_mask.shape))
    gradients["attn_mask"] = dbias.reshape(attn_mask.shape)
    return gradients


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
    tape: Tape = None,  # only in NumPy: JAX and PyTorch differentiate the function itself
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
    options["tape"] = tape  # only in NumPy: the backward pass reads it
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
    record(tape, seen=sees_key, real_queries=real_queries)  # only in NumPy: the backward pass reads them
    mean = repeat_heads(to_dtype(upcast(v).sum(1) / s, dtype_name(v))[:, None], q)
    context = where(real_queries, where(sees_key, context, mean), 0.0)
    return context if query.ndim == 4 else context[0]


@defvjp(dot_product_attention)
def dot_product_attention_call_vjp(
    tape: Tape,
    dy: Array,
    *,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: float | None,
    **_: Any,
) -> dict[str, Array | None]:
    """The gradients of query, key, value and bias; a row without keys spreads its gradient evenly over all values."""
    kv_heads, s = key.shape[-2], key.shape[-3]
    dy = dy if dy.ndim == 4 else dy[None]
    dcontext = dy if "real_queries" not in tape else where(tape["seen"], dy, 0.0)
    dq, dk, dv, dbias = attend_vjp(tape, dcontext, scale=to_python_scalar(scale), kv_heads=kv_heads)
    if "real_queries" in tape:
        dmean = where(tape["real_queries"] & ~tape["seen"], dy, 0.0).sum(1)[:, None]
        dv = dv + repeat_heads_vjp(dmean, kv_heads) / s
    named = (("query", dq, query), ("key", dk, key), ("value", dv, value), ("bias", dbias, bias))
    return {name: dx.reshape(x.shape) for name, dx, x in named if dx is not None and x is not None}
