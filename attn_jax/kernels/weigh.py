"""Sigmoid attention in blocks of queries and keys: a key is weighed by itself, so weights are not divided by a sum over
the row.

The backward pass computes a block's weights again, as `flash` does, and what is said there of sharding holds here.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attn_jax.attention.masks import hide_neg_inf, in_window, query_and_key_masks, zero_unseen
from attn_jax.kernels.arrays import add_at, pad_to, sharded_as_queries, slice_of
from attn_jax.ops import Array, broadcast_to, einsum, log, maximum, sigmoid, tanh, to_dtype, where
from attn_np.contract._band import Band
from attn_np.contract._weighing import Weighing

BLOCK_SCORES, BLOCK_KEYS, MIN_QUERIES = 2**19, 256, 128  # of a block: the scores, the keys, the fewest queries


class SigmoidPlan(NamedTuple):
    """How a call is computed, all known when it is compiled.

    Attributes:
        weighing: the scale, the softcap and the score offset.
        band: which keys a query sees by its position, and the numbers of both.
        block_queries, block_keys: numbers of queries and keys of one block.
    """

    weighing: Weighing
    band: Band
    block_queries: int
    block_keys: int

    @property
    def num_query_blocks(self) -> int:
        """Number of blocks of queries."""
        return -(-self.band.t // self.block_queries)

    @property
    def num_key_blocks(self) -> int:
        """Number of blocks of keys."""
        return -(-self.band.s // self.block_keys)

    def query_positions(self, i: Any) -> Any:
        """Positions of the queries of block i."""
        return i * self.block_queries + jnp.arange(self.block_queries) + (self.band.s - self.band.t)

    def key_positions(self, j: Any) -> Any:
        """Positions of the keys of block j."""
        return j * self.block_keys + jnp.arange(self.block_keys)

    def key_block_range(self, i: Any) -> tuple[Any, Any]:
        """The first block of keys that any query of block i sees by its position, and the one after the last."""
        s, first = self.band.s, i * self.block_queries + self.band.s - self.band.t
        start, stop = 0, self.num_key_blocks
        if self.band.left is not None:
            start = jnp.clip(first - self.band.left, 0, s) // self.block_keys
        if self.band.right is not None:
            stop = -(-jnp.clip(first + self.block_queries + self.band.right, 0, s) // self.block_keys)
        return start, stop


def attend_by_sigmoid(
    weighing: Weighing, band: Band, q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None
) -> Array:
    """The context `b t h v`; mask and bias are broadcastable to `b h t s`."""
    b, t, h, _ = q.shape
    queries = min(t, max(MIN_QUERIES, BLOCK_SCORES // (b * h * BLOCK_KEYS)))
    queries = -(-t // -(-t // queries))  # blocks of one size that hold t with little to spare
    plan = SigmoidPlan(weighing, band, queries, min(BLOCK_KEYS, band.s))
    mask, bias = (x if x is None else jnp.asarray(x) for x in (mask, to_dtype(bias, q.dtype.name)))
    mask, bias = (x if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (mask, bias))
    return _attend(plan, q, k, v, mask, bias)


@partial(jax.jit, static_argnums=0)
def _attend(plan: SigmoidPlan, q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None) -> Array:
    (b, t, h, _), s = q.shape, k.shape[1]
    if mask is not None:
        query_mask, key_mask = query_and_key_masks(mask, t, s, like=q, window=(plan.band.left, plan.band.right))
        q, k = zero_unseen("bhts->bthk", query_mask, q), zero_unseen("bhts->bshk", key_mask, k)
        v = zero_unseen("bhts->bshv", key_mask, v)
    # In `shard_map` an array that devices share becomes each one's own by a zero, so that JAX sums its gradient.
    zero: Any = jnp.zeros_like(sum(jnp.sum(x) for x in (q, k, v, bias) if x is not None))
    q, k, v = q * plan.weighing.scale + zero, k + zero, v + zero
    bias = bias if bias is None else sharded_as_queries(bias + zero, q)

    def padded(x: Any, axis: int, size: int) -> Any:
        return x if x is None or x.shape[axis] == 1 else pad_to(x, axis, -(-x.shape[axis] // size) * size)

    # Keys and queries that fill the last blocks are 0, and so is what comes of them: a weight times a value of 0.
    q = pad_to(q, 1, plan.num_query_blocks * plan.block_queries).reshape(
        b, plan.num_query_blocks, plan.block_queries, h, q.shape[3]
    )
    k, v = pad_to(k, 1, plan.num_key_blocks * plan.block_keys), pad_to(v, 1, plan.num_key_blocks * plan.block_keys)
    mask, bias = (padded(padded(x, 2, plan.block_queries), 3, plan.block_keys) for x in (mask, bias))
    score_offset = plan.weighing.score_offset
    if score_offset is None:
        score_offset = -log(maximum(_key_counts(plan, bias, mask), 1).astype(q.dtype))
    else:
        score_offset = jnp.full((plan.num_query_blocks, 1, 1, 1, 1), score_offset, q.dtype)
    context: Any = _blocks(
        plan, q.transpose(1, 0, 3, 2, 4), k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), bias, mask, score_offset
    )
    return context.transpose(1, 0, 3, 2, 4).reshape(b, plan.num_query_blocks * plan.block_queries, h, v.shape[3])[:, :t]


# Letters: i blocks of queries, n queries and c keys of a block. Keys come as columns, `b h k s`.


def _visible(plan: SigmoidPlan, i: Any, j: Any, bias: Array | None, mask: Array | None) -> Array | None:
    """Who sees whom in block i of the queries and block j of the keys, broadcastable to `b h n c`; None for all."""
    allowed = hide_neg_inf(_block_of(plan, mask, i, j), _block_of(plan, bias, i, j))
    if plan.band.full:
        return allowed
    in_band = in_window(plan.query_positions(i)[None], plan.key_positions(j)[None], plan.band.left, plan.band.right)
    return in_band if allowed is None else in_band & allowed


def _block_of(plan: SigmoidPlan, x: Array | None, i: Any, j: Any) -> Array | None:
    """The part of a mask or bias for block i of the queries and block j of the keys."""
    if x is None:
        return None
    return slice_of(slice_of(x, 2, i * plan.block_queries, plan.block_queries), 3, j * plan.block_keys, plan.block_keys)


def _key_counts(plan: SigmoidPlan, bias: Array | None, mask: Array | None) -> Array:
    """How many keys each query sees, broadcastable to `i b h n 1`."""
    band, blocks = plan.band, jnp.arange(plan.num_query_blocks)
    if bias is None and mask is None:
        position = plan.query_positions(blocks[:, None])
        start = 0 if band.left is None else jnp.clip(position - band.left, 0, band.s)
        stop = band.s if band.right is None else jnp.clip(position + band.right + 1, 0, band.s)
        return broadcast_to(stop - start, position.shape)[:, None, None, :, None]

    def of_block(i: Any) -> Array:
        def summed(j: Any, count: Any) -> Array:
            allowed: Any = _visible(plan, i, j, bias, mask)
            seen = (plan.key_positions(j) < band.s) & allowed
            seen = seen[..., :0] if count is None else seen
            more = jnp.sum(seen, -1, keepdims=True, dtype=jnp.int32)
            return more if count is None else count + more

        return jax.lax.fori_loop(*plan.key_block_range(i), summed, summed(0, None))

    return jax.lax.map(of_block, blocks)


def _weights(
    plan: SigmoidPlan, i: Any, j: Any, q: Array, k: Array, bias: Array | None, mask: Array | None, score_offset: Array
) -> tuple[Array, Array | None, Array | None]:
    """Of block i of the queries and block j of the keys: the weights, who sees whom, and the slope of the softcap."""
    allowed, bias, slope = _visible(plan, i, j, bias, mask), _block_of(plan, bias, i, j), None
    x = einsum("bhnk,bhkc->bhnc", q, slice_of(k, 3, j * plan.block_keys, plan.block_keys))
    if plan.weighing.softcap is not None:
        x = tanh(x / plan.weighing.softcap)
        slope = 1.0 - x * x
        x = plan.weighing.softcap * x
    x = x if bias is None else x + bias
    weights = sigmoid(x + score_offset)
    return weights if allowed is None else where(allowed, weights, 0.0), allowed, slope


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocks(
    plan: SigmoidPlan, q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, score_offset: Array
) -> Array:
    """The contexts `i b h n v` of queries `i b h n k`, keys `b h k s` and values `b h s v`."""

    def query_block(block: Any) -> Array:
        i, q, score_offset = block

        def summed(j: Any, context: Any) -> Array:
            weights, _, _ = _weights(plan, i, j, q, k, bias, mask, score_offset)
            values = slice_of(v, 2, j * plan.block_keys, plan.block_keys)
            if context is None:
                return einsum("bhnc,bhcv->bhnv", weights[..., :0], values[:, :, :0])
            return context + einsum("bhnc,bhcv->bhnv", weights, values)

        return jax.lax.fori_loop(*plan.key_block_range(i), summed, summed(0, None))

    return jax.lax.map(query_block, (jnp.arange(q.shape[0]), q, score_offset))


def _blocks_fwd(plan: SigmoidPlan, *arrays: Any) -> tuple[Array, Any]:
    return _blocks(plan, *arrays), arrays


def _blocks_bwd(plan: SigmoidPlan, arrays: Any, dcontext: Array) -> Any:
    """Gradients of p = sigmoid(score): ds = p (1 - p) (do v); of the products dq = ds k, dk = ds q, dv = p do."""
    q, k, v, bias, mask, score_offset = arrays
    key_rows, value_columns = k.swapaxes(2, 3), v.swapaxes(2, 3)

    def query_block(carry: Any, block: Any) -> Any:
        i, q, dcontext, score_offset = block

        def body(j: Any, carry: Any) -> Any:
            dq, dk, dv, dbias = carry
            at = j * plan.block_keys
            weights, allowed, slope = _weights(plan, i, j, q, k, bias, mask, score_offset)
            dweights = einsum("bhnv,bhvc->bhnc", dcontext, slice_of(value_columns, 3, at, plan.block_keys))
            ds = weights * (1.0 - weights) * dweights
            ds = ds if allowed is None else where(allowed, ds, 0.0)
            if dbias is not None:
                start = 0, 0, i * plan.block_queries if dbias.shape[2] > 1 else 0, at if dbias.shape[3] > 1 else 0
                dbias = add_at(dbias, start, ds)
            if slope is not None:
                ds = ds * (slope if allowed is None else where(allowed, slope, 0.0))
            dk = add_at(dk, (0, 0, 0, at), einsum("bhkn,bhnc->bhkc", q.mT, ds))
            dv = add_at(dv, (0, 0, 0, at), einsum("bhvn,bhnc->bhvc", dcontext.mT, weights))
            return dq + einsum("bhnc,bhck->bhnk", ds, slice_of(key_rows, 2, at, plan.block_keys)), dk, dv, dbias

        dq, *carry = jax.lax.fori_loop(*plan.key_block_range(i), body, (jnp.zeros_like(q), *carry))
        return carry, dq

    zeros: Any = [None if x is None else jnp.zeros_like(x) for x in (k, value_columns, bias)]
    (dk, dv, dbias), dq = jax.lax.scan(query_block, zeros, (jnp.arange(q.shape[0]), q, dcontext, score_offset))
    return dq, dk, dv.swapaxes(2, 3), dbias, None, None


_blocks.defvjp(_blocks_fwd, _blocks_bwd)
