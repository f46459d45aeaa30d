"""The functions that models call for attention, on this library: JAX's, PyTorch's and Flax's.

nnx.MultiHeadAttention(..., attention_fn=attn_jax.drop_in.attention_fn)
linen.MultiHeadDotProductAttention(..., attention_fn=attn_jax.drop_in.attention_fn)
"""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attn_jax.attention.attend import attend
from attn_jax.attention.drop_in import dot_product_attention as dot_product_attention
from attn_jax.attention.drop_in import scaled_dot_product_attention as scaled_dot_product_attention
from attn_jax.ops.specs import checked_specs
from attn_np.contract import _drop_in as drop_in_contract
from attn_np.contract._base import field_error

__all__ = ["attention_fn", "dot_product_attention", "scaled_dot_product_attention"]


def attention_fn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    is_causal: bool = False,
) -> Array:
    """`attention_fn` of Flax's modules, NNX and linen: its `dot_product_attention`, with its axes: `... t h k`.

    The same weights are dropped, from the same key. A query that sees no key gets the mean of all values, as there.

    Raises:
        ValueError: shapes that do not fit, or values that mean nothing here.
        TypeError: dtypes that do not fit.
    """
    if module is not None:
        fix = "set sow_weights=False, or call attend with return_weights=True"
        raise field_error(drop_in_contract.FLAX_FUNCTION, "module=None", type(module).__name__, fix)
    if precision is not None:
        raise field_error(
            drop_in_contract.FLAX_FUNCTION, "precision=None", repr(precision), "set jax_default_matmul_precision"
        )
    drop_in_contract.check_arrays_present(
        drop_in_contract.FLAX_FUNCTION,
        checked_specs(drop_in_contract.FLAX_FUNCTION, query=query, key=key, value=value, mask=mask),
    )
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
    mask = None if mask is None else mask.astype(bool)
    drop_in_contract.check_flax(
        checked_specs(drop_in_contract.FLAX_FUNCTION, query=query, key=key, value=value, bias=bias, mask=mask)
    )
    batch, (t, h, _), s = query.shape[:-3], query.shape[-3:], key.shape[-3]
    q, k, v = (x.reshape((prod(batch), *x.shape[-3:])) for x in (query, key, value))
    rate, keep = 0.0 if deterministic else float(dropout_rate), None
    if rate > 0 and dropout_rng is None:
        raise field_error(
            drop_in_contract.FLAX_FUNCTION, "dropout_rng, a key, with dropout_rate", "none", "pass rngs= to the module"
        )
    if rate > 0 and dropout_rng is not None:
        shape = (t, s) if broadcast_dropout else (*batch, h, t, s)
        keep = jax.random.bernoulli(dropout_rng, 1.0 - rate, (1,) * (len(batch) + 3 - len(shape)) + shape)
    bias, mask, keep = (merge_batch_axes(x, batch) for x in (bias, mask, keep))
    if rate == 0:
        context = dot_product_attention(q, k, v, bias, mask, is_causal=is_causal)
    else:
        allowed = jnp.tril(jnp.ones((1, 1, t, s), bool)) if is_causal else jnp.ones((1, 1, t, s), bool)
        allowed = allowed if mask is None else allowed & mask
        seen = allowed.any(-1, keepdims=True)  # a query that sees no key weighs all alike: by scores of 0
        bias = None if bias is None else jnp.where(seen, bias, 0)
        q = jnp.where(jnp.broadcast_to(seen, (*seen.shape[:2], t, 1)).swapaxes(1, 2), q, 0)
        context = attend(q, k, v, bias=bias, mask=allowed | ~seen, keep=keep, rate=rate)[0]
    return context.reshape((*batch, *context.shape[1:]))


def merge_batch_axes(x: Array | None, batch: tuple[int, ...]) -> Array | None:
    """An array `... h t s` with its batch axes made one, broadcast where there are several."""
    if x is None or len(batch) == 1:
        return x
    x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape((prod(batch), *x.shape[-3:]))
