"""The fast paths of `attend`: the same numbers as the textbook path, without the `t s` matrix of scores.

Blocks. Queries are cut into blocks and so are the keys; only the scores of one block with another exist at a time. The
softmax is "online" (Milakov and Gimelshein 2018): each query keeps the largest score so far, the sum of
exponentials relative to it and the weighted sum of values; where a block of keys raises the largest score, the two sums
are scaled down. Blocks of keys that causality, a window or a pattern hides from all queries of a block are not in the
loop.

Backward. Beside the arguments only the output and each query's largest score and sum are kept; the weights are computed
again, block by block (Rabe and Staats 2021, Dao et al. 2022): memory grows with t, not with t s. Such a rule supports
reverse mode and first derivatives only.

Sharding. Loops run over blocks of positions. Batch and key/value heads stay axes of their own in every array, are never
merged, indexed or looped over, so each device computes its own part of both, and nothing moves between devices but the
gradient of what they share, such as one bias for the whole batch: it is a sum over devices. Under a pattern with
arrays, such as documents, each sequence takes its own blocks of keys; all devices run a loop for as many steps as any
sequence needs. What a loop starts with is computed from the arrays, so that it is sharded as they are.

Speed on a CPU. The caches want few scores at a time, XLA large products: it runs a product of fewer than about 2^23
multiplications for each head on a single core. Query heads that share a key/value head are rows of one product, so
keys are never repeated. Keys and values are put in the order of the products once, before the loops.

A bias by diagonal is a number for each diagonal of the scores, read by all queries from one skewed array of a few rows.

Small inputs take one block and no loop: quicker to compile and to run, and differentiable in every mode. A few queries
of many keys, as in a step of decoding, read keys and values where they lie, up to the last key that a mask shows: to
put them in order would copy the cache. Where devices hold parts of the mask, that key is the last of any device.
"""

from collections.abc import Callable
from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx

from attn_jax.attention.masks import block_table, visible_pairs, zero_unseen
from attn_jax.kernels.arrays import add_at, largest, pad_to, sharded_as_queries, slice_of
from attn_jax.kernels.cudnn import by_platform, cudnn_supports
from attn_jax.ops import (
    Array,
    any_over,
    broadcast_to,
    diagonals_to_pairs,
    dtype_name,
    einsum,
    exp,
    log,
    maximum,
    repeat_heads,
    tanh,
    to_dtype,
    upcast,
    where,
)
from attn_jax.ops.sharded import head_shards
from attn_np.contract._band import Limits, window_limits
from attn_np.contract._patterns import Pattern, Window

ONE_BLOCK_SCORES = 3 << 19  # a call with at most this many scores is one block
ONE_BLOCK_HEAD_SCORES = 1 << 15  # and so is one whose heads have at most this many each
# A call with at most `SHORT_QUERIES` queries is not cut along them. Its keys are, if they fill more than
# `SHORT_UNCUT_BLOCKS` blocks.
SHORT_QUERIES = 16
SHORT_KEY_BLOCK, SHORT_UNCUT_BLOCKS = 128, 4
MIN_PRODUCT_MULTIPLICATIONS = 1 << 23  # multiplications of one product
# Of a block: the most rows, before its queries are rounded up to a multiple, and the fewest keys where there is no
# pattern; a row is one query of one of the heads that share keys.
MAX_ROWS, MIN_KEYS = 1024, 128
WINDOW_BLOCK_QUERIES = 512  # of one head in a block where causality or a window hides keys: more would skip less
STRIP_ROWS = 64  # of the skewed bias of a bias by diagonal; a block reads it that many queries at a time
# Queries and keys of a block under a pattern, and under one with an array by query: skipping is worth more than large
# products.
PATTERN_BLOCK, QUERY_PATTERN_BLOCK = 128, 64
QUERY_MULTIPLE = 8  # the number of queries in a block is a multiple of this


class Plan(NamedTuple):
    """How a call is computed: sizes, blocks and options, all known when it is compiled.

    Attributes:
        t, s: numbers of queries and keys.
        group_size: how many query heads share a key/value head.
        block_queries, block_keys: numbers of queries and keys of one block.
        keeps_layout: whether keys and values are read where they lie, not put in the order of the products first.
        left, right: how many keys before and after its own position a query sees; None for all.
        scale, softcap: as in `attend`.
        pattern: None, or who may attend to whom besides, without its arrays, which are arguments of the compiled call.
    """

    t: int
    s: int
    group_size: int
    block_queries: int
    block_keys: int
    keeps_layout: bool
    left: int | None
    right: int | None
    scale: float
    softcap: float | None
    pattern: Pattern | None

    @property
    def has_one_block(self) -> bool:
        """Whether one block holds all scores."""
        return (self.block_queries, self.block_keys) == (self.t, self.s) and not self.keeps_layout

    @property
    def num_query_blocks(self) -> int:
        """Number of blocks of queries."""
        return -(-self.t // self.block_queries) if self.t > self.block_queries else 1

    def key_block_range(self, i: Any) -> tuple[Any, Any]:
        """The first block of keys that any query of block i sees by its position, and the one after the last."""
        position, end = i * self.block_queries + self.s - self.t, -(-self.s // self.block_keys)
        first = 0 if self.left is None else jnp.clip(position - self.left, 0, self.s) // self.block_keys
        if self.right is not None:
            end = -(-jnp.clip(position + self.block_queries + self.right, 0, self.s) // self.block_keys)
        return first, end

    def key_start(self, j: Any) -> Any:
        """The first key of block j; the last block ends with the last key and may overlap the one before."""
        return jnp.minimum(j * self.block_keys, self.s - self.block_keys)

    @property
    def ragged(self) -> tuple[bool, bool]:
        """Whether the last block of queries, and that of keys, is not full."""
        return (
            self.num_query_blocks * self.block_queries > self.t,
            self.block_keys < self.s and self.s % self.block_keys > 0,
        )


def _are_static(*sizes: Any) -> bool:
    """Whether sizes are numbers; in `jax.export` an axis may have a symbolic size, and such lengths take one block."""
    return not any(jax.export.is_symbolic_dim(n) for n in sizes)


def _plan(
    q: Array, k: Array, v: Array, left: int | None, right: int | None, scale: float, softcap: float | None,
    pattern: Any, has_diagonal_bias: bool,
) -> Plan:  # fmt: skip
    (b, t, h, width), (s, g) = q.shape, k.shape[1:3]
    r, queries, keys, keeps_layout = h // g, t, s, False
    if not _are_static(t, s):
        pass
    elif t <= SHORT_QUERIES and s > SHORT_UNCUT_BLOCKS * SHORT_KEY_BLOCK:
        keys, keeps_layout = SHORT_KEY_BLOCK, True
    elif (b if _are_static(b) else 1) * h * t * s > ONE_BLOCK_SCORES and t * s > ONE_BLOCK_HEAD_SCORES:
        queries = max(MAX_ROWS // r, 1)
        queries = queries if left is None and right is None else min(queries, WINDOW_BLOCK_QUERIES)
        has_query_arrays = pattern is not None and "b t" in dict(pattern.arrays())
        pattern_block = t if pattern is None else QUERY_PATTERN_BLOCK if has_query_arrays else PATTERN_BLOCK
        queries = min(queries, pattern_block)
        multiple = STRIP_ROWS if has_diagonal_bias else QUERY_MULTIPLE
        multiple_of_all_blocks = -(-t // queries) * multiple
        queries = -(-t // multiple_of_all_blocks) * multiple  # blocks of one size that hold t with little to spare
        keys = max(MIN_KEYS, MIN_PRODUCT_MULTIPLICATIONS // (queries * r * width))
        keys = min(keys if pattern is None else pattern_block, s)
    if 0 in (q.size, v.size):  # nothing to cut
        queries, keys, keeps_layout = t, s, False
    return Plan(t, s, r, queries, keys, keeps_layout, left, right, scale, softcap, pattern)


def supports(q: Array, k: Array, v: Array) -> bool:
    """Whether the fast path can take these arrays."""
    return True


def supports_diagonal_bias(q: Array, k: Array) -> bool:
    """Whether the fast path takes a bias by diagonal as one number for each: if the lengths are numbers, and not 0."""
    return _are_static(q.shape[1], k.shape[1]) and 0 not in (q.shape[1], k.shape[1])


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    bias: Array | None,
    causal: bool,
    window: Limits | None,
    scale: float,
    softcap: float | None,
    sinks: Array | None,
    pattern: Pattern | None = None,
    diagonal_bias: Array | None = None,
    return_lse: bool = False,
) -> tuple[Array, Array | None]:
    """The context `b t h v` by the arguments of `attn_jax.attend`, all checked; and, if asked for, the lse `b h t`. A
    `diagonal_bias` is added to the scores, one number for each diagonal, `1 h 1 n`.
    """
    left, right = window_limits(window)
    right = 0 if causal else right
    if _are_static(q.shape[1], k.shape[1]):
        left = None if left is None or left >= k.shape[1] - 1 else left  # every query sees the first key
        right = None if right is None or right >= q.shape[1] - 1 else right  # and the last
    q, k, v = (x[...] if isinstance(x, nnx.Variable) else jnp.asarray(x) for x in (q, k, v))
    no_extras = all(x is None for x in (mask, bias, softcap, sinks, pattern, diagonal_bias))

    def in_blocks(q: Array, k: Array, v: Array) -> tuple[Array, Array | None]:
        dtype = dtype_name(q)
        q, k, v = (upcast(x) for x in (q, k, v))
        if k.shape[2] > 1 and k.shape[2] % head_shards(q):  # a group of heads lies on several devices
            k, v = repeat_heads(k, q), repeat_heads(v, q)
        floats = (x if x is None else jnp.asarray(x).astype(q.dtype) for x in (bias, sinks, diagonal_bias))
        pattern_without_arrays = pattern and pattern.map(lambda axes, x: None)
        plan = _plan(q, k, v, left, right, float(scale), softcap, pattern_without_arrays, diagonal_bias is not None)
        pattern_arrays = () if pattern is None else tuple(jnp.asarray(x) for _, x in pattern.arrays())
        added, logits, by_diagonal = floats
        context, lse = _attend(plan, q, k, v, added, logits, mask, pattern_arrays, by_diagonal)
        return to_dtype(context, dtype), lse if return_lse else None

    if no_extras and not return_lse and cudnn_supports(q, k, v, left, right):
        return by_platform(lambda *arrays: in_blocks(*arrays)[0], q, k, v, left, right, scale), None
    return in_blocks(q, k, v)


@partial(jax.jit, static_argnums=0)
def _attend(
    plan: Plan,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sinks: Array | None,
    mask: Array | None,
    pattern_arrays: tuple[Array, ...],
    diagonal_bias: Array | None,
) -> tuple[Array, Array]:
    (b, t, h, _), g, blocks, queries = q.shape, k.shape[2], plan.num_query_blocks, plan.block_queries
    # In `shard_map` an array that devices share becomes each one's own by an operation with one that they do not: by
    # adding a zero of all here, so that JAX sums its gradient over them.
    floats = q, k, v, bias, sinks, diagonal_bias
    zero: Any = jnp.zeros_like(sum(jnp.sum(x) for x in floats if x is not None))
    q, k, v = q + zero, k + zero, v + zero
    bias, sinks, diagonal_bias = (None if x is None else x + zero for x in floats[3:])
    bias = bias if bias is None else sharded_as_queries(bias, q)
    if diagonal_bias is not None and diagonal_bias.shape[1] > 1:  # sharded as the queries' heads are
        diagonal_bias += jnp.zeros_like(jnp.sum(q, (0, 1, 3)))[:, None, None]
    if diagonal_bias is not None:
        seen = _seen_by_diagonals(plan, diagonal_bias, g)
        k, v = where(seen, k, 0.0), where(seen, v, 0.0)
    # Two reshapes: with explicit sharding each of them may split one axis only.
    q = pad_to(q * plan.scale, 1, blocks * queries).reshape(b, blocks, queries, h, q.shape[3])
    q = q.reshape(b, blocks, queries, g, plan.group_size, q.shape[4]).transpose(1, 0, 3, 4, 2, 5)
    q = q.reshape(blocks, b, g, plan.group_size * queries, q.shape[5])
    mask, bias = _grouped(plan, mask, g), _grouped(plan, bias, g)
    sinks = None if sinks is None else sinks.reshape(1, g, plan.group_size, 1, 1)
    skewed_bias = _skewed_bias(plan, diagonal_bias, g)
    path = _one_block if plan.has_one_block else _blocks
    results: Any = path(plan, q, k, v, bias, sinks, mask, pattern_arrays, skewed_bias)
    context, lse = results
    context = context.reshape(blocks, b, g, plan.group_size, queries, v.shape[3]).transpose(1, 0, 4, 2, 3, 5)
    context = context.reshape(b, blocks, queries, h, v.shape[3]).reshape(b, blocks * queries, h, v.shape[3])[:, :t]
    lse = lse.reshape(blocks, b, g, plan.group_size, queries).transpose(1, 2, 3, 0, 4)
    return context, lse.reshape(b, g, plan.group_size, blocks * queries).reshape(b, h, blocks * queries)[:, :, :t]


def _grouped(plan: Plan, x: Array | None, g: int) -> Array | None:
    """Something broadcastable to the scores `b h t s` as `b g r t s`, with as many t as the blocks have."""
    if x is None:
        return None
    x = jnp.asarray(x).reshape((1,) * (4 - x.ndim) + x.shape)
    b, h, t, s = x.shape
    x = x.reshape(b, *((1, 1) if h == 1 else (g, h // g)), t, s)
    return x if t == 1 else pad_to(x, 3, plan.num_query_blocks * plan.block_queries)


def _seen_by_diagonals(plan: Plan, diagonal_bias: Array, g: int) -> Array:
    """The keys that any query sees, `1 s g 1`: those with a diagonal in the window whose bias is not -inf."""
    h, n = diagonal_bias.shape[1], diagonal_bias.shape[3]
    relative_position = jnp.arange(n) - (plan.s - 1)
    left, right = n if plan.left is None else plan.left, n if plan.right is None else plan.right
    visible = (diagonal_bias != -jnp.inf) & (relative_position >= -left) & (relative_position <= right)
    before = jnp.pad(jnp.cumsum(visible, 3, dtype=jnp.int32), ((0, 0), (0, 0), (0, 0), (1, 0)))
    seen = before[..., plan.t :] > before[..., : plan.s]
    return any_over(seen.reshape(1, *((1, 1) if h == 1 else (g, h // g)), plan.s), (2,)).swapaxes(1, 2)[..., None]


def _skewed_bias(plan: Plan, diagonal_bias: Array | None, g: int) -> Array | None:
    """The diagonals skewed into x rows of m columns, a row for each of the last x queries: `1 h 1 n` -> `1 g r x m`.
    Earlier queries read the same rows further right. If one block holds all scores, x is the number of queries.
    """
    if diagonal_bias is None:
        return None
    x = jnp.pad(diagonal_bias, ((0, 0), (0, 0), (0, 0), (plan.num_query_blocks * plan.block_queries - plan.t, 0)))
    rows = plan.block_queries if plan.has_one_block or plan.block_queries % STRIP_ROWS else STRIP_ROWS
    x = diagonals_to_pairs(x, rows, x.shape[3] - rows + 1)
    return x.reshape(1, *((1, 1) if x.shape[1] == 1 else (g, x.shape[1] // g)), *x.shape[2:])


# One block of scores --------------------------------------------------------------------------------------------------
#
# Letters: i blocks of queries, q queries each; n rows, a block's queries in the r heads that share keys; c keys of one.


def _rows(plan: Plan, x: Array) -> Array:
    """`b g r q c` as `b g n c`; where it is the same for all rows, n is 1."""
    b, g, *rows, c = x.shape
    if rows == [1, 1]:
        return x[:, :, 0]
    x = broadcast_to(x, (b, g, plan.group_size, plan.block_queries, c))
    return x.reshape(b, g, plan.group_size * plan.block_queries, c)


def _block_of(plan: Plan, x: Array | None, i: Any, j: Any) -> Array | None:
    """The part of a mask or bias for block i of the queries and block j of the keys, `b g r q c`."""
    if x is None:
        return None
    return slice_of(slice_of(x, 3, i * plan.block_queries, plan.block_queries), 4, plan.key_start(j), plan.block_keys)


def _strip_starts(plan: Plan, skewed_bias: Array, i: Any, j: Any) -> list[tuple[int, Any]]:
    """For each strip of queries of block i: its first query in the block, and its first column in `skewed_bias` for
    block j of the keys. A strip has as many queries as `skewed_bias` has rows.
    """
    rows, column = skewed_bias.shape[3], (plan.num_query_blocks - 1 - i) * plan.block_queries + plan.key_start(j)
    return [(n, column + (plan.block_queries - rows - n)) for n in range(0, plan.block_queries, rows)]


def _pattern(plan: Plan, change: Any, pattern_arrays: tuple[Array, ...]) -> Any:
    """The pattern of the call with `change(axes, array)` of each of its arrays."""
    pattern, remaining = plan.pattern, iter(pattern_arrays)
    return pattern and pattern.map(lambda axes, _: change(axes, next(remaining)))


def _key_loop(
    plan: Plan, pattern_arrays: tuple[Array, ...], like: Array, shared_by_batch: bool
) -> Callable[[Any], Any]:
    """A function of a block of queries: where its loop over blocks of keys begins and ends, and which block is read at
    step n of it. Under a pattern these are the blocks that the pattern may show to any of the queries, of each sequence
    its own or, if `shared_by_batch`, of all the same; a sequence with fewer than another goes on with hidden ones.
    """
    if plan.pattern is None:
        return lambda i: (*plan.key_block_range(i), lambda n: n)
    pattern = Window(plan.left, plan.right) & _pattern(plan, lambda axes, x: x, pattern_arrays)
    may_see = block_table(pattern, plan.t, plan.s, plan.block_queries, plan.block_keys, like).possible
    may_see = any_over(may_see, (0,))[None] if shared_by_batch else may_see
    order, end = jnp.argsort(~may_see, axis=2, stable=True), jnp.max(jnp.sum(may_see, 2), 0)
    return lambda i: (0, end[i], lambda n: order[0, i, n] if order.shape[0] == 1 else order[:, i, n])


def _visible(
    plan: Plan, i: Any, j: Any, bias: Array | None, mask: Array | None, pattern_arrays: tuple[Array, ...]
) -> Array | None:
    """Who sees whom in block i of the queries and block j of the keys, broadcastable to `b g n c`; None for all."""
    key = jnp.reshape(plan.key_start(j), (-1, 1, 1)) + jnp.arange(plan.block_keys)
    query = i * plan.block_queries + jnp.arange(plan.block_queries)[None, :, None]
    query_positions = query + plan.s - plan.t
    relative_position = key - query_positions
    conditions: list[Array] = [query < plan.t] if plan.ragged[0] else []
    conditions += [key >= jnp.reshape(j * plan.block_keys, (-1, 1, 1))] if plan.ragged[1] else []
    conditions += [] if plan.left is None else [relative_position >= -plan.left]
    conditions += [] if plan.right is None else [relative_position <= plan.right]
    conditions = [x[:, None, None] for x in conditions]
    conditions += [] if mask is None else [mask]
    conditions += [] if bias is None else [bias != -jnp.inf]
    if plan.pattern is not None:

        def of_block(axes: str, x: Array) -> Array:
            if axes == "b t":
                x = pad_to(x, 1, plan.num_query_blocks * plan.block_queries)
                return slice_of(x, 1, i * plan.block_queries, plan.block_queries)
            return x if axes == "b" else slice_of(x, 1, plan.key_start(j), plan.block_keys)

        pattern = _pattern(plan, of_block, pattern_arrays)
        conditions += [visible_pairs(pattern, query_positions[..., 0], key[:, 0])[:, :, None]]
    return None if not conditions else _rows(plan, reduce(and_, conditions))


def _scores(plan: Plan, q: Array, k: Array, bias: Array | None, visible: Array | None) -> tuple[Array, Array | None]:
    """Scores `b g n c`, -inf where hidden, and the slope of the softcap."""
    scores, slope = einsum("bgnk,bgkc->bgnc", q, k), None
    if plan.softcap is not None:
        tanh_scores = tanh(scores / plan.softcap)
        slope = 1.0 - tanh_scores * tanh_scores
        scores = plan.softcap * tanh_scores
    scores = scores if bias is None else scores + _rows(plan, bias)
    return scores if visible is None else where(visible, scores, -jnp.inf), slope


def _block_scores(
    plan: Plan, i: Any, j: Any, q: Array, k: Array, bias: Array | None, mask: Array | None,
    pattern_arrays: tuple[Array, ...], skewed_bias: Array | None,
) -> tuple[Array, Array, Array | None, Array | None]:  # fmt: skip
    """Of block i of the queries and j of the keys: scores, each query's largest, who sees whom, the softcap's slope.

    A bias by diagonal is added in place, some queries after the others: it is never an array as large as the block,
    which would have to be written and read again.
    """
    bias, mask = _block_of(plan, bias, i, j), _block_of(plan, mask, i, j)
    visible = _visible(plan, i, j, bias, mask, pattern_arrays)
    scores, slope = _scores(plan, q, k, bias if skewed_bias is None else None, visible)
    if skewed_bias is None:
        return scores, largest(scores, visible), visible, slope
    (b, g), rows, rows_by_axes = scores.shape[:2], skewed_bias.shape[3], (plan.group_size, plan.block_queries)
    scores_by_axes, tops = scores.reshape(b, g, *rows_by_axes, plan.block_keys), []
    if visible is not None:
        visible = visible.reshape(*visible.shape[:2], *(rows_by_axes if visible.shape[2] > 1 else (1, 1)), -1)
    for first_query, column in _strip_starts(plan, skewed_bias, i, j):
        part = slice_of(scores_by_axes, 3, first_query, rows)
        added = slice_of(skewed_bias, 4, column, plan.block_keys)
        visible_in_strip = added != -jnp.inf
        if visible is not None:
            visible_in_strip &= slice_of(visible, 3, first_query, rows)
        added = added if bias is None else added + slice_of(bias, 3, first_query, rows)
        part = where(visible_in_strip, part + added, -jnp.inf)
        tops.append(largest(part, visible_in_strip))
        scores_by_axes = jax.lax.dynamic_update_slice_in_dim(scores_by_axes, part, first_query, 3)
    # XLA would make one operation of the last part and the change of shape, and copy the block for it.
    scores = jax.lax.optimization_barrier(scores_by_axes).reshape(scores.shape)
    return scores, jnp.concatenate(tops, 3).reshape(scores.shape[:3]), scores != -jnp.inf, slope


def _key_mask(plan: Plan, visible: Array | None, *hidden_by: Array | None) -> Array | None:
    """The mask by which unseen keys become 0; None where a right limit alone hides keys: the last query sees all."""
    return None if plan.left is None and plan.pattern is None and all(x is None for x in hidden_by) else visible


# Over keys: the largest score and the sum of exponentials relative to it, `b g n`; the values times these, `b g n v`.
SoftmaxState = tuple[Array, Array, Array]
# The values' average, `b g n v`; the largest score and the sum of exponentials relative to it, `b g n`.
ContextAndStats = tuple[Array, Array, Array]


def _online_sums(scores: Array, top: Array, v: Array, before: SoftmaxState | None = None) -> SoftmaxState:
    """The sums over some keys, from their scores, each query's largest one and their values, and those before."""
    top = top if before is None else maximum(top, before[0])
    shift = where(top == -jnp.inf, 0.0, top)
    e = exp(scores - shift[..., None])
    total, weighted_values = jnp.sum(e, -1), einsum("bgnc,bgcv->bgnv", e, v)
    if before is not None:
        top_before, total_before, weighted_values_before = before
        shrink = exp(top_before - shift)
        total = total_before * shrink + total
        weighted_values = weighted_values_before * shrink[..., None] + weighted_values
    return top, total, weighted_values


def _average(plan: Plan, state: SoftmaxState, v: Array, sinks: Array | None) -> ContextAndStats:
    """From the state after all keys: the average of the values, the largest score and the sum of exponentials.

    A sink is one more key, whose value is 0. For a query that sees no key the largest score is set to inf, so that all
    its exponentials are 0.
    """
    empty_rows = state[0] == -jnp.inf
    if sinks is not None:
        scores = _rows(plan, sinks)
        state = _online_sums(scores, largest(scores, None), jnp.zeros_like(v[:, :, :1]), state)
    top, total, weighted_values = state
    total = where(empty_rows, 1.0, total)
    return where(empty_rows[..., None], 0.0, weighted_values / total[..., None]), where(empty_rows, jnp.inf, top), total


def _one_block(
    plan: Plan, q: Array, k: Array, v: Array, bias: Array | None, sinks: Array | None, mask: Array | None,
    pattern_arrays: tuple[Array, ...], skewed_bias: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    if skewed_bias is not None:
        bias = skewed_bias if bias is None else skewed_bias + bias
    visible = _visible(plan, 0, 0, bias, mask, pattern_arrays)
    q, k = zero_unseen("bgnc->bgnk", visible, q[0]), zero_unseen("bgnc->bgkc", visible, k.transpose(0, 2, 3, 1))
    v = zero_unseen("bgnc->bgcv", visible, v.swapaxes(1, 2))
    scores, _ = _scores(plan, q, k, bias, visible)
    context, top, total = _average(plan, _online_sums(scores, largest(scores, visible), v), v, sinks)
    return context[None], _lse(plan, top, total, sinks)[None]


def _lse(plan: Plan, top: Array, total: Array, sinks: Array | None) -> Array:
    """The logarithm of a query's sum of exponentials; where it sees no key, that of its sink, -inf without one."""
    empty_rows, lse_of_nothing = top == jnp.inf, -jnp.inf if sinks is None else _rows(plan, sinks)[..., 0]
    return where(empty_rows, lse_of_nothing, where(empty_rows, 0.0, top) + log(total))


# Blocks of scores -----------------------------------------------------------------------------------------------------


def _forward(
    plan: Plan, q: Array, k: Array, v: Array, bias: Array | None, sinks: Array | None, mask: Array | None,
    pattern_arrays: tuple[Array, ...], skewed_bias: Array | None,
) -> ContextAndStats:  # fmt: skip
    """Outputs `i b g n v`, the largest scores and the sums of exponentials relative to them, both `i b g n`."""
    k_order, v_order = (0, 2, 3, 1), (0, 2, 1, 3)
    if not plan.keeps_layout:
        k, v = k.transpose(k_order), v.transpose(v_order)

    def keys_and_values(j: Any) -> tuple[Array, Array]:
        first = plan.key_start(j)
        if plan.keeps_layout:
            kj, vj = (slice_of(x, 1, first, plan.block_keys) for x in (k, v))
            return kj.transpose(k_order), vj.transpose(v_order)
        return slice_of(k, 3, first, plan.block_keys), slice_of(v, 2, first, plan.block_keys)

    key_loop = _key_loop(plan, pattern_arrays, q, bias is not None or skewed_bias is not None)

    def query_block(block: tuple[Array, Array]) -> ContextAndStats:
        i, qi = block

        def scores_and_values(j: Any) -> tuple[Array, Array, Array]:
            kj, vj = keys_and_values(j)
            scores, top, visible, _ = _block_scores(plan, i, j, qi, kj, bias, mask, pattern_arrays, skewed_bias)
            return scores, top, zero_unseen("bgnc->bgcv", _key_mask(plan, visible, bias, mask), vj)

        scores, top, vj = scores_and_values(0)
        first, end, key_block_at = key_loop(i)
        if plan.pattern is None and plan.keeps_layout and mask is not None and mask.shape[4] == plan.s:
            end = jnp.minimum(end, -(-jnp.max(where(mask, jnp.arange(1, plan.s + 1), 0)) // plan.block_keys))
        no_keys = _online_sums(scores[..., :0], where(True, -jnp.inf, top), vj[:, :, :0])
        state = jax.lax.fori_loop(
            first, end, lambda n, state: _online_sums(*scores_and_values(key_block_at(n)), state), no_keys
        )
        return _average(plan, state, vj, sinks)

    return jax.lax.map(query_block, (jnp.arange(plan.num_query_blocks), q))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocks(
    plan: Plan, q: Array, k: Array, v: Array, bias: Array | None, sinks: Array | None, mask: Array | None,
    pattern_arrays: tuple[Array, ...], skewed_bias: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    context, top, total = _forward(plan, q, k, v, bias, sinks, mask, pattern_arrays, skewed_bias)
    return context, _lse(plan, top, total, sinks)


def _blocks_fwd(plan: Plan, *arrays: Any) -> tuple[tuple[Array, Array], Any]:
    context, top, total = _forward(plan, *arrays)
    return (context, _lse(plan, top, total, arrays[4])), (arrays, context, top, total)


def _blocks_bwd(plan: Plan, residuals: Any, cotangents: tuple[Array, Array]) -> Any:
    """Gradients, where o is the context: ds = p (do v - do o + dlse); of the products dq = ds k, dk = ds q, dv = p do.

    The exponentials stand for the weights p, because do and dlse have been divided by `total`, the exponentials' sum.
    """
    (q, k, v, bias, sinks, mask, pattern_arrays, skewed_bias), context, top, total = residuals
    dcontext, dlse = cotangents
    # With a bias all sequences take the same blocks of keys: the gradient of a shared bias has one place for a step,
    # not one for each sequence.
    key_loop = _key_loop(plan, pattern_arrays, q, bias is not None or skewed_bias is not None)
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)

    def query_block(carry: Any, block: Any) -> Any:
        i, qi, context_i, top_i, total_i, dcontext_i, dlse_i = block
        empty_rows = top_i == jnp.inf
        qi, dcontext_i = (where(empty_rows[..., None], 0.0, x) for x in (qi, dcontext_i / total_i[..., None]))
        delta_i = jnp.sum(dcontext_i * context_i, -1) - where(empty_rows, 0.0, dlse_i / total_i)
        first, end, key_block_at = key_loop(i)

        def body(n: Any, carry: Any) -> Any:
            dqi, dk, dv, dbias, dskewed_bias = carry
            j = key_block_at(n)
            at = plan.key_start(j)
            kj, vj = slice_of(k, 3, at, plan.block_keys), slice_of(v, 2, at, plan.block_keys)
            scores, _, visible, slope = _block_scores(plan, i, j, qi, kj, bias, mask, pattern_arrays, skewed_bias)
            e = exp(scores - top_i[..., None])
            ds = e * (einsum("bgnv,bgcv->bgnc", dcontext_i, vj) - delta_i[..., None])
            ds = ds if visible is None else where(visible, ds, 0.0)
            ds_by_axes = ds.reshape(*ds.shape[:2], plan.group_size, plan.block_queries, plan.block_keys)
            if dbias is not None:
                start = 0, 0, 0, i * plan.block_queries if dbias.shape[3] > 1 else 0, at if dbias.shape[4] > 1 else 0
                dbias = add_at(dbias, start, ds_by_axes)
            if dskewed_bias is not None:
                for first_query, column in _strip_starts(plan, dskewed_bias, i, j):
                    strip = slice_of(ds_by_axes, 3, first_query, dskewed_bias.shape[3])
                    dskewed_bias = add_at(dskewed_bias, (0, 0, 0, 0, column), strip)
            if slope is not None:
                ds = ds * (slope if visible is None else where(visible, slope, 0.0))
            dk = add_at(dk, (0, 0, 0, at), einsum("bgkn,bgnc->bgkc", qi.mT, ds))
            dv = add_at(dv, (0, 0, 0, at), einsum("bgvn,bgnc->bgvc", dcontext_i.mT, e))
            key_mask = _key_mask(plan, visible, bias, mask)
            kj = zero_unseen("bgnc->bgkc", key_mask, kj)
            return dqi + einsum("bgnc,bgkc->bgnk", ds, kj), dk, dv, dbias, dskewed_bias

        dqi, *carry = jax.lax.fori_loop(first, end, body, (jnp.zeros_like(qi), *carry))
        return carry, (dqi, delta_i)

    zeros: Any = [None if x is None else jnp.zeros_like(x) for x in (k, v.mT, bias, skewed_bias)]
    query_blocks = jnp.arange(plan.num_query_blocks), q, context, top, total, dcontext, dlse
    (dk, dv, dbias, dskewed_bias), (dq, delta) = jax.lax.scan(query_block, zeros, query_blocks)
    dsinks = None
    if sinks is not None:
        grouped_shape = *top.shape[:3], plan.group_size, plan.block_queries
        # Where there is no key, the lse is the sink.
        dsinks_by_row = where(top == jnp.inf, dlse, 0.0).reshape(grouped_shape)
        dsinks_by_row -= exp(sinks[..., 0] - top.reshape(grouped_shape)) * delta.reshape(grouped_shape)
        dsinks = jnp.sum(dsinks_by_row, (0, 1, 4))[None, ..., None, None]
    return dq, dk.transpose(0, 3, 1, 2), dv.transpose(0, 3, 1, 2), dbias, dsinks, None, None, dskewed_bias


_blocks.defvjp(_blocks_fwd, _blocks_bwd)
