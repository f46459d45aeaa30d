"""The fast path of `attend`: flash attention in NumPy. No `b h t s` array is made but the gradient of a bias.

1. Blocks. Scores of a block of queries against a block of keys are computed, turned into weights and used up before
   those of the next block. They stay in the processor's cache, and memory beyond inputs and output is that of a few
   blocks (Rabe and Staats 2021; Dao et al. 2022). Everything between the two matrix products happens in place.
2. Masks. Blocks that causality, a window, a pattern or the mask hide entirely are skipped, and those hidden in part are
   masked. Near a causal edge or in a window, blocks have fewer queries (less waste) and more heads (as many scores).
3. Softmax, block by block. The weights of a row, a query of one head, are exp(score - shift) / total; where powers of 2
   are faster, scores and shifts are times log2(e), the `exp_factor`. (exp: `online_weights_`, total: `sums_over_keys`.)
   The shift is the row's largest score, so that `exp` cannot overflow; while later blocks are unknown, the largest so
   far: what was added up shrinks by exp(old shift - new shift) when it grows. Where the Cauchy-Schwarz inequality |q k|
   <= |q| |k| says that no score is large, the shift is 0: no largest is looked for, which saves 21 to 39 % of a call.
4. Backward. The forward pass keeps shift and total of each row, and the backward pass computes the weights again from
   them. (One number for both, the lse shift + log(total), would lose digits where scores are large.)
5. A small call is one block of the whole batch and all heads: threads would cost more than they save.
6. Threads. BLAS is held at one; as many as it had share the work: forward blocks of queries, backward key/value heads.
7. Relative positions. A bias that depends on these alone is a number for each diagonal of the scores, of which a block
   reads a view. The softmax of a row does not change with a constant. So where products are small enough, the bias is
   moved until no score is above 30: a row's largest need not be looked for, and blocks whose scores are all too low to
   weigh anything (below -87 in float32) are skipped. A block of queries with a row whose weights add up to less than 1
   is computed again, with the largest looked for. The bias's gradient is a sum over each diagonal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from math import e, log, log2
from typing import Any

import numpy as np

from attn_np.attention.masks import block_table, hide_neg_inf, query_and_key_masks, visible_pairs, zero_unseen
from attn_np.contract._band import Band, Limits, Span
from attn_np.contract._intervals import TruthBounds
from attn_np.contract._patterns import Pattern, Window
from attn_np.contract._tape import save_residuals
from attn_np.kernels.blocks import Keys, QueryBlock, by_kv_head, index_of
from attn_np.kernels.scores import (
    add_to_diagonal_sums,
    exp2_is_fast,
    hidden_to_neg_inf_,
    outside_window,
    underflow_score,
    zero_hidden_,
    zero_subnormal_,
)
from attn_np.kernels.threads import Scratch, in_threads
from attn_np.ops import Array, diagonals_to_pairs, dtype_name, pairs_to_diagonals, to_dtype, upcast

BLOCK_QUERIES, BLOCK_KEYS = 1024, 512  # a block's scores, two megabytes in float32, fit a core's caches
EDGE_QUERIES = 128  # blocks that a causal edge or a window cuts through are halved down to this many queries
PATTERN_KEYS = 64  # a pattern is asked about this many keys at a time
MIN_BLOCKS = 16  # at least this many blocks of queries where possible, so that every thread has work
FEW_QUERIES = 32  # for fewer, looking at every key and value would cost more than a bound of the scores saves
SAFE_SCORE = 30.0  # exp(30), summed over a million keys and times values up to 2**50, is finite in float32
SAFE_VALUES = 2.0**-80, 2.0**50  # exp(-30) times the smaller one is a normal float32


@dataclass
class Arguments:
    """The arguments of `attend`, 16-bit types widened.

    Attributes:
        q, k, v: `b t h k`, `b s g k`, `b s g v`.
        mask, bias: None, or `b h t s` with axes of 1 where they are the same for all.
        band: causality and window; with a pattern the full band: causality and window are then part of the pattern.
        pattern: None, or who may attend to whom by it.
        sinks: None, or `h`.
        exp_factor: log2(e) where weights in blocks are powers of 2, 1 where they are powers of e.
        diagonal_bias: None, or `h n`, with h = 1 if all heads share it, times `exp_factor`: a number for each of the
            n = t + s - 1 diagonals, the first of which is that of the last query and the first key.
        product_bound: None, or what no |score| without the diagonal bias exceeds, `h`, times `exp_factor`; if set, no
            score with that bias is above `SAFE_SCORE`.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    band: Band
    pattern: Pattern | None
    scale: float
    softcap: float | None
    sinks: Array | None
    exp_factor: float
    diagonal_bias: Array | None = None
    product_bound: Array | None = None

    def with_unseen_zeroed(self) -> "Arguments":
        """The same with 0 for queries that see no key and keys that no query sees: 0 times their NaN would be NaN."""
        band, g, h = self.band, self.k.shape[2], self.q.shape[2]
        mask: Any = hide_neg_inf(self.mask, self.bias)
        query_mask, key_mask = query_and_key_masks(
            mask, band.t, band.s, like=self.q, window=(band.left, band.right), pattern=self.pattern
        )
        if key_mask is not None and key_mask.ndim == 4 and key_mask.shape[1] > 1:
            key_mask = np.any(key_mask.reshape(key_mask.shape[0], g, h // g, *key_mask.shape[2:]), axis=2)
        k, v = zero_unseen("bhts->bshk", key_mask, self.k), zero_unseen("bhts->bshv", key_mask, self.v)
        return replace(self, q=zero_unseen("bhts->bthk", query_mask, self.q), k=k, v=v)

    @cached_property
    def pattern_table(self) -> TruthBounds:
        """`block_table` of the pattern: which blocks of queries may see some of each `PATTERN_KEYS` keys, which all."""
        pattern: Any = self.pattern
        return block_table(pattern, self.band.t, self.band.s, block_shape(self)[0], PATTERN_KEYS, like=self.q)

    def exp_(self, x: Array, floor: float | None = None) -> Array:
        """Turn scores, already times `exp_factor`, into weights, in place. With `floor`, lower scores are raised to it,
        and its weight is subtracted from all weights: lower scores weigh exactly 0, and no slow subnormal is computed.
        """
        exp = np.exp if self.exp_factor == 1.0 else np.exp2
        if floor is None:
            return exp(x, out=x)
        smallest = exp(np.full(64, floor, x.dtype))[0]
        return np.subtract(exp(np.maximum(x, floor, out=x), out=x), smallest, out=x)


@dataclass(frozen=True)
class ForwardResult:
    """The context, and what the backward pass needs: the weights are exp(score - row_shift / exp_factor) / total.

    Attributes:
        context: `b t h v`.
        row_shift: `b h t`, what was subtracted from the scores of a row, times `exp_factor`.
        total: `b h t`, infinite where a row sees nothing and has no sink.
    """

    args: Arguments
    context: Array
    row_shift: Array
    total: Array

    def lse(self) -> Array:
        """The logarithm of each row's sum of exponentials, `b h t`; -inf where it sees nothing and has no sink."""
        lse = self.row_shift / self.row_shift.dtype.type(self.args.exp_factor) + np.log(self.total)
        return np.where(self.total == np.inf, -np.inf, lse)


def supports(q: Array, k: Array, v: Array) -> bool:
    """Whether the arrays are ndarrays or memmaps: others bring their own operations, which the textbook path calls."""
    return {type(q), type(k), type(v)} <= {np.ndarray, np.memmap}


def supports_diagonal_bias(q: Array, k: Array) -> bool:
    """Whether the fast path takes a bias by diagonal as one number for each diagonal: yes, unless q or k is empty."""
    return 0 not in (*q.shape, *k.shape)


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
    tape: Any = None,
) -> tuple[Array, Array | None]:
    """The context `b t h v` as `attn_np.attend` defines it, of q, k and v; and, if asked for, the lse `b h t`. A
    `diagonal_bias` is added to the scores, one number for each diagonal, `1 h 1 n`.
    """
    mask = None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    bias = None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    dtype, q = dtype_name(q), upcast(q)
    sinks = None if sinks is None else sinks.astype(q.dtype)
    # One number per pair where it holds -inf, or for an lse, which moving the bias by a constant would change.
    if diagonal_bias is not None and (return_lse or not np.isfinite(diagonal_bias).all()):
        pairs = diagonals_to_pairs(diagonal_bias, q.shape[1], k.shape[1])
        bias, diagonal_bias = pairs if bias is None else pairs + bias, None
    # Capped or biased scores would have to be multiplied by log2(e) one by one, which costs what powers of 2 save.
    exp_factor = log2(e) if softcap is bias is None and exp2_is_fast(q.dtype) else 1.0
    band = Band.of(q.shape[1], k.shape[1], causal, window)
    if pattern is not None and not band.full:
        band, pattern = Band(band.t, band.s), Window(band.left, band.right) & pattern
    args = Arguments(q, upcast(k), upcast(v), mask, bias, band, pattern, scale, softcap, sinks, exp_factor)
    with np.errstate(invalid="ignore", over="ignore"):  # hidden numbers may overflow or be NaN
        args = args if diagonal_bias is None else with_diagonal_bias(args, diagonal_bias[0, :, 0].astype(q.dtype))
        result = forward(args)
        if not (mask is bias is pattern is band.left is band.right is None or np.isfinite(result.context).all()):
            result = forward(args.with_unseen_zeroed())  # rare: something hidden may have been NaN
    if tape is not None:
        save_residuals(tape, result)
    return to_dtype(result.context, dtype), result.lse() if return_lse else None


def with_diagonal_bias(args: Arguments, diagonal_bias: Array) -> Arguments:
    """The arguments with a bias `h n`. Where `forward` may skip looking for the largest score, the bias is moved by a
    constant for each head so that no score is above `SAFE_SCORE`.

    That is allowed with at least `FEW_QUERIES` queries, small products, moderate values, a small constant, and no
    sinks, softcap or other bias. The constant is the head's largest bias, less 15 where no product is above 15, so that
    the weights of a row seldom add up to less than 1. A block with such a row is computed again with the largest
    looked for, which rounds its other rows differently. So the keys that one query sees can change the roundings of
    another query of its block.
    """
    h = args.q.shape[2]
    query_norms, key_norms = (np.sqrt(np.einsum("bthk,bthk->bth", x, x)) for x in (args.q, args.k))
    longest_query, longest_key = (np.max(x, axis=1, initial=0) for x in (query_norms, key_norms))
    longest_key = np.repeat(longest_key, h // args.k.shape[2], axis=1)
    bound = np.max(longest_query * longest_key, axis=0, initial=0) * abs(args.scale)
    safe = args.sinks is args.softcap is args.bias is None and args.band.t >= FEW_QUERIES
    safe = safe and values_are_moderate(args.v)
    if not (safe and diagonal_bias.size and np.max(bound, initial=0) <= SAFE_SCORE):  # `not <=` is also true of NaN
        return replace(args, diagonal_bias=diagonal_bias * diagonal_bias.dtype.type(args.exp_factor))
    constant = np.max(diagonal_bias, axis=1) - np.where(2 * bound > SAFE_SCORE, 0, args.q.dtype.type(SAFE_SCORE / 2))
    if not np.max(np.abs(constant)) <= 2 * SAFE_SCORE:  # a large one would round the others
        return replace(args, diagonal_bias=diagonal_bias * diagonal_bias.dtype.type(args.exp_factor))
    moved = diagonal_bias - constant[:, None]
    diagonal_bias, bound = (x * x.dtype.type(args.exp_factor) for x in (moved, bound))
    return replace(args, diagonal_bias=diagonal_bias, product_bound=bound)


def attend_vjp(
    result: ForwardResult, dcontext: Array, dlse: Array | None = None, needs_diagonal_grad: bool = False
) -> tuple[Array, Array, Array, Array | None, Array | None, Array | None]:
    """The gradients of `attend` from those of its context, `b t h v`, and of its lse, `b h t`: of q, k, v, the sinks,
    the biased scores and, if asked for, of the scores summed over each diagonal, `1 h 1 n`.

    With the weights p = exp(score - row_shift / exp_factor) / total, the rule of the softmax is

        dscore = p (dp - delta),   delta = sum of p dp over the row = dcontext . context,

    so that a row needs two numbers of the forward pass and one of this. The lse adds p dlse: delta is lower by dlse.
    """
    args = result.args
    with np.errstate(invalid="ignore", over="ignore"):
        if not (np.isfinite(args.q).all() and np.isfinite(args.k).all()):
            args = args.with_unseen_zeroed()
        dtype = args.q.dtype
        # A gradient is divided by its row's total, and a small one would underflow where the total is large because
        # nothing was subtracted from the scores. So the exponent of such a total, as a score, is moved into its shift.
        exponent = np.rint(np.frexp(result.total)[1] * (log(2) * args.exp_factor)).astype(dtype)
        exponent = np.where(result.row_shift == 0, exponent, 0)
        row_shift, total = result.row_shift + exponent, result.total * args.exp_(-exponent)
        result = replace(result, args=args, row_shift=row_shift, total=total)
        dcontext = dcontext.astype(dtype, copy=False)
        delta = np.einsum("bthv,bthv->bht", dcontext, result.context)
        delta = delta if dlse is None else delta - dlse.astype(dtype, copy=False)
        dsinks = None
        if args.sinks is not None:
            # The sink has no value vector, so its score gets what the others lose.
            weight = args.exp_(args.sinks[:, None] * dtype.type(args.exp_factor) - result.row_shift)
            dsinks = -np.sum(weight / result.total * delta, axis=(0, 2))
        dq, dk, dv, dbiased, ddiagonal_bias = backward(result, dcontext, delta, needs_diagonal_grad)
    return dq, dk, dv, dsinks, dbiased, ddiagonal_bias


# Blocks ---------------------------------------------------------------------------------------------------------------


def fits_one_block(args: Arguments) -> bool:
    """Whether the call is so small that threads would cost more than they save."""
    (b, t, h, _), s = args.q.shape, args.band.s
    return b * t * h * s <= BLOCK_QUERIES * BLOCK_KEYS


def block_shape(args: Arguments) -> tuple[int, int]:
    """Queries and keys of a block, forward and backward: with other shapes the backward pass would round otherwise."""
    (b, t, h, _), s, (left, right) = args.q.shape, args.band.s, (args.band.left, args.band.right)
    if fits_one_block(args):
        return max(1, t), max(1, s)
    if args.pattern is not None:
        # Where different queries may see different keys, smaller blocks waste less work on hidden scores.
        has_query_arrays = "b t" in dict(args.pattern.arrays())
        return min(t, -(-EDGE_QUERIES // 2) if has_query_arrays else EDGE_QUERIES), min(s, BLOCK_KEYS)
    if args.band.full:
        return min(t, BLOCK_QUERIES, max(EDGE_QUERIES, -(-b * h * t // MIN_BLOCKS))), min(s, BLOCK_KEYS)
    if left is not None and right is not None and left + right < BLOCK_KEYS:
        return min(t, EDGE_QUERIES), left + right + EDGE_QUERIES  # all keys that they see
    return min(t, 2 * EDGE_QUERIES), min(s, max(1, BLOCK_KEYS // 2))


def query_blocks(args: Arguments, threads: int) -> list[QueryBlock]:
    """All queries, in two blocks for each thread where possible. The last come first: causal, they see more keys."""
    (b, t, h, _), g = args.q.shape, args.k.shape[2]
    if fits_one_block(args):
        return [QueryBlock(slice(0, b), slice(0, h), slice(0, g), Span(0, t))]
    # Heads that share keys are rows of one product, so their number must not depend on the threads.
    min_blocks, (block_queries, block_keys) = 2 * threads if g == h else MIN_BLOCKS, block_shape(args)
    most_heads = BLOCK_QUERIES * BLOCK_KEYS // (block_queries * block_keys)
    batch, heads = max(1, min(most_heads // h, b // min_blocks)) if block_queries == t else 1, h
    if batch == 1:
        # A part of one sequence's heads: any, if each has its own keys; else within a group that shares them.
        most_heads = min(most_heads, b * h * -(-t // block_queries) // min_blocks)
        heads = max((n for n in range(1, most_heads + 1) if (h if g == h else h // g) % n == 0), default=1)
    return [
        QueryBlock(
            slice(i, i + batch), slice(j, j + heads), slice(j * g // h, (j + heads - 1) * g // h + 1), Span(n, stop)
        )
        for i in range(0, b, batch)
        for j in range(0, h, heads)
        for n, stop in reversed([(n, min(n + block_queries, t)) for n in range(0, t, block_queries)])
    ]


def visible_blocks(args: Arguments, block: QueryBlock) -> Iterator[tuple[QueryBlock, Keys, Array | None]]:
    """The sub-blocks of a block, under a pattern the block itself, each with keys it may see and the `hidden_mask`."""
    stride = block_shape(args)[1]
    if args.pattern is not None:
        for keys in keys_of_pattern(args, block, stride):
            if (hidden := hidden_mask(args, block, keys)) is None or not hidden.all():
                yield block, keys, hidden
        return
    start, stop = args.band.keys(block.queries)
    for i in range(start, stop, stride):
        yield from visible_sub_blocks(args, block, Span(i, min(i + stride, stop)))


def keys_of_pattern(args: Arguments, block: QueryBlock, max_keys: int) -> Iterator[Keys]:
    """The keys that the pattern may show to any query of a block, about as many as `max_keys` at a time."""
    if not block.queries.length:
        return
    may_see = block.slice_batch(args.pattern_table.possible)[:, block.queries.start // block_shape(args)[0]].any(0)
    key_pieces, pieces_at_a_time = np.flatnonzero(may_see), -(-max_keys // PATTERN_KEYS)
    for i in range(0, len(key_pieces), pieces_at_a_time):
        group = key_pieces[i : i + pieces_at_a_time]
        # A bias by diagonal is read in spans.
        gaps = np.flatnonzero(np.diff(group) > 1) + 1 if args.diagonal_bias is not None else []
        for run in np.split(group, gaps):
            start, stop, s = run[0], run[-1] + 1, args.band.s
            if stop - start == len(run):
                yield Span(int(start) * PATTERN_KEYS, min(int(stop) * PATTERN_KEYS, s))
            else:
                keys = (run[:, None] * PATTERN_KEYS + np.arange(PATTERN_KEYS)).ravel()
                yield keys[: len(keys) - max(0, int(stop) * PATTERN_KEYS - s)]


def visible_sub_blocks(
    args: Arguments, block: QueryBlock, keys: Span
) -> Iterator[tuple[QueryBlock, Span, Array | None]]:
    """Yields sub-blocks of some queries each, the keys they see, and their `hidden_mask`. A block with more than
    `EDGE_QUERIES` queries through which a causal edge or a window runs is halved, and its halves likewise; any other is
    its own sub-block. What is hidden entirely is left out.
    """
    queries, (start, stop) = block.queries, args.band.keys(block.queries)
    keys = Span(max(keys.start, start), min(keys.stop, stop))
    if keys.start >= keys.stop:
        return
    if queries.stop - queries.start > EDGE_QUERIES and not args.band.covers(queries, keys):
        middle = (queries.start + queries.stop) // 2
        for half in Span(queries.start, middle), Span(middle, queries.stop):
            yield from visible_sub_blocks(args, block._replace(queries=half), keys)
    elif (hidden := hidden_mask(args, block, keys)) is None or not hidden.all():
        yield block, keys, hidden


def hidden_mask(args: Arguments, block: QueryBlock, keys: Keys) -> Array | None:
    """Which scores of a block are hidden, `b h t s` with axes of 1; None where none is."""
    queries, band, pattern = block.queries, args.band, args.pattern
    hidden = None if pattern is None else outside_pattern(args, block, pattern, keys)
    if isinstance(keys, Span) and not band.covers(queries, keys):
        first = keys.start - queries.start - (band.s - band.t)  # the first key's position, relative to the first query
        outside = outside_window(queries.stop - queries.start, keys.stop - keys.start, first, band.left, band.right)
        hidden = outside if hidden is None else hidden | outside
    if args.mask is not None and not (mask := args.mask[block.score_index(args.mask.shape, keys)]).all():
        hidden = ~mask if hidden is None else hidden | ~mask
    if args.bias is not None and (minus_inf := args.bias[block.score_index(args.bias.shape, keys)] == -np.inf).any():
        hidden = minus_inf if hidden is None else hidden | minus_inf
    return hidden


def outside_pattern(args: Arguments, block: QueryBlock, pattern: Pattern, keys: Keys) -> Array | None:
    """Which scores of a block the pattern hides, `b 1 t s` with axes of 1; None if it surely shows them all."""
    queries = block.queries
    key_positions = np.arange(args.band.s, dtype=np.int32)[index_of(keys)]
    surely_see = block.slice_batch(args.pattern_table.certain)[:, queries.start // block_shape(args)[0]]
    if surely_see[:, key_positions // PATTERN_KEYS].all():
        return None
    first_position, index = args.band.s - args.band.t, {"t": slice(*queries), "s": index_of(keys)}
    block_pattern = pattern.map(
        lambda axes, x: block.slice_batch(x)[(slice(None), *(index[a] for a in axes.split()[1:]))]
    )
    query_positions = np.arange(queries.start + first_position, queries.stop + first_position, dtype=np.int32)
    return ~visible_pairs(block_pattern, query_positions[None], key_positions[None])


def scaled_queries(args: Arguments, block: QueryBlock) -> Array:
    """The queries of a block, `b h t k`, as they go into `scores_`."""
    # BLAS may round by strides, so their order in memory is the same for any number of heads.
    return np.multiply(block.slice_queries(args.q), args.q.dtype.type(args.scale * args.exp_factor), order="C")


def scores_(args: Arguments, block: QueryBlock, keys: Keys, q: Array, out: Array) -> Array | None:
    """Fill `out`, `b h t s`, with scores times `exp_factor`, hidden too; return the tanh of the softcap, or None."""
    k = block.slice_keys(args.k, keys)
    np.matmul(by_kv_head(q, k), k.swapaxes(2, 3), out=by_kv_head(out, k))
    tanh_scores = None
    if args.softcap is not None:
        tanh_scores = np.tanh(np.divide(out, args.softcap, out=out))
        np.multiply(tanh_scores, args.softcap, out=out)
    if args.bias is not None:
        out += args.bias[block.score_index(args.bias.shape, keys)]
    if args.diagonal_bias is not None:
        diagonals = block.slice_diagonals(args.diagonal_bias, keys, args.band.t)
        out += diagonals_to_pairs(diagonals[None, :, None], *out.shape[2:])
    return tanh_scores


def score_range(args: Arguments, block: QueryBlock, keys: Keys) -> tuple[float, float]:
    """The least and the largest score of a block that a bias by diagonal allows, to skip and raise low ones."""
    if args.product_bound is None:
        return -np.inf, np.inf
    diagonal_bias: Any = args.diagonal_bias
    bias = block.slice_diagonals(diagonal_bias, keys, args.band.t)
    bound = args.product_bound[block.heads, None]
    return float(np.min(bias - bound, initial=np.inf)), float(np.max(bias + bound, initial=-np.inf))


# Forward --------------------------------------------------------------------------------------------------------------


def forward(args: Arguments) -> ForwardResult:
    """The context, block by block, the blocks of queries in threads."""
    (b, t, h, _), g, dtype = args.q.shape, args.k.shape[2], args.q.dtype
    context, (row_shift, total) = np.empty((b, t, h, args.v.shape[-1]), dtype), np.empty((2, b, h, t), dtype)
    longest_key = None
    if args.bias is args.diagonal_bias is None and t >= FEW_QUERIES and values_are_moderate(args.v):
        squares = np.max(np.einsum("bsgk,bsgk->bsg", args.k, args.k), axis=1, initial=0)
        longest_key = np.sqrt(np.repeat(squares, h // g, axis=1))

    def attend_block(block: QueryBlock) -> None:
        q = scaled_queries(args, block)
        bounded = longest_key is not None and score_bound(args, block, q, longest_key) <= SAFE_SCORE
        bounded = bounded or args.product_bound is not None  # no score can overflow exp: the shift is 0
        weighted_values, weight_sums, block_shift = sums_over_keys(args, block, q, bounded)
        if args.product_bound is not None and not (weight_sums >= 1).all():  # some query sees only keys of low bias
            weighted_values, weight_sums, block_shift = sums_over_keys(args, block, q, False)
        weight_sums[weight_sums == 0] = np.inf  # a row that sees nothing gives 0
        np.divide(weighted_values, weight_sums[..., None], out=block.slice_queries(context))
        block.slice_rows(row_shift)[...], block.slice_rows(total)[...] = block_shift, weight_sums

    in_threads(attend_block, partial(query_blocks, args))
    return ForwardResult(args, context, row_shift, total)


def values_are_moderate(v: Array) -> bool:
    """Whether weights from exp(-30) to exp(30) can multiply every value without overflow or underflow."""
    low, high = SAFE_VALUES
    for i in range(0, v.shape[1], BLOCK_KEYS):
        magnitudes = np.abs(v[:, i : i + BLOCK_KEYS])
        tiny = np.min(magnitudes, initial=low) < low and ((magnitudes > 0) & (magnitudes < low)).any()
        if tiny or not np.max(magnitudes, initial=0) <= high:  # `not <=` is also true of NaN
            return False
    return True


def score_bound(args: Arguments, block: QueryBlock, q: Array, longest_key: Array) -> float:
    """What no score of a block, nor its sinks, exceeds in size: the softcap, or |q| |k|; NaN if any number is."""
    bound = args.softcap
    if bound is None:
        longest_query = np.sqrt(np.max(np.einsum("bhtk,bhtk->bht", q, q), axis=2))
        bound = float(np.max(longest_query * longest_key[block.batch, block.heads], initial=0)) / args.exp_factor
    return bound if args.sinks is None else float(np.maximum(bound, np.max(np.abs(args.sinks[block.heads]))))


def sums_over_keys(args: Arguments, block: QueryBlock, q: Array, bounded: bool) -> tuple[Array, Array, Array]:
    """Of each query, over all blocks of keys: the sum of weights times values, `b h t v`; the sum of weights, `b h t`;
    and what was subtracted from the scores, `b h t`: 0 where they are bounded, else the largest of them.
    """
    shape, dtype = q.shape[:3], q.dtype
    weighted_values, weight_sums = np.zeros((*shape, args.v.shape[-1]), dtype), np.zeros(shape, dtype)
    top = np.full(shape, 0.0 if bounded else -np.inf, dtype)
    if args.sinks is not None:
        sink = args.sinks[block.heads, None] * dtype.type(args.exp_factor)
        top = top if bounded else np.maximum(top, sink)
        weight_sums += np.where(sink != -np.inf, args.exp_(sink - top), 0.0)
    scratch, cutoff = Scratch(), underflow_score(dtype) * args.exp_factor
    for sub_block, keys, hidden in visible_blocks(args, block):
        low, high = (np.inf, np.inf) if args.diagonal_bias is None else score_range(args, sub_block, keys)
        if bounded and high < cutoff:
            continue
        at, v = block.index_of_sub_block(sub_block), sub_block.slice_keys(args.v, keys)
        weights = scratch("weights", (*q[at].shape[:3], v.shape[2]), dtype)
        scores_(args, sub_block, keys, q[at], weights)
        if bounded:
            # Hidden scores are exponentiated too and zeroed after: exp(-inf) takes several times as long.
            args.exp_(weights, cutoff if low < cutoff else None)
            zero_hidden_(weights, hidden)
        else:
            shrink = online_weights_(args, weights, hidden, top[at])
            weighted_values[at] *= shrink[..., None]
            weight_sums[at] *= shrink
        weight_sums[at] += weights @ np.ones(weights.shape[3], dtype)
        weighted_values[at] += (by_kv_head(weights, v) @ v).reshape(*weights.shape[:3], v.shape[-1])
    if not bounded and (no_score := top == -np.inf).any():
        # Visible scores that are all -inf have overflowed.
        weight_sums[no_score & sees_a_key(args, block, top)] = np.nan
        top[no_score] = 0.0
    return weighted_values, weight_sums, top


def online_weights_(args: Arguments, scores: Array, hidden: Array | None, top: Array) -> Array:
    """Turn scores into weights relative to the largest so far, `top`, which grows, both in place; returns the factor by
    which earlier weights shrink.
    """
    hidden_to_neg_inf_(scores, hidden)
    before = top.copy()
    np.maximum(top, scores.max(-1), out=top)
    shift = np.where(top == -np.inf, 0.0, top)
    scores -= shift[..., None]
    zero_subnormal_(args.exp_(scores))
    return args.exp_(before - shift)


def sees_a_key(args: Arguments, block: QueryBlock, like: Array) -> Array:
    """Which queries of a block see some key, `b h t`."""
    seen = np.zeros_like(like, np.bool_)
    for sub_block, _, hidden in visible_blocks(args, block):
        seen[block.index_of_sub_block(sub_block)] |= True if hidden is None else ~hidden.all(-1)
    return seen


# Backward -------------------------------------------------------------------------------------------------------------


def backward(
    result: ForwardResult, dcontext: Array, delta: Array, needs_diagonal_grad: bool
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Gradients of q, k, v, the biased scores and, if asked for, the diagonals, block by block."""
    args = result.args
    (b, t, h, _), s, dtype = args.q.shape, args.band.s, args.q.dtype
    cutoff, queries_per_strip = underflow_score(dtype) * args.exp_factor, min(t, EDGE_QUERIES)
    needs_diagonal_grad = needs_diagonal_grad and args.diagonal_bias is not None
    ddiagonal_bias = np.zeros((b, h, t + s - 1), dtype) if needs_diagonal_grad else None
    dq, dk, dv = (np.empty(x.shape, dtype) for x in (args.q, args.k, args.v))
    dbiased = None if args.bias is None else np.zeros((b, h, 1 if args.bias.shape[2] == 1 else t, s), dtype)

    def add_block(block: QueryBlock, sum_dk: Array, sum_dv: Array, diagonal_sums: Array, scratch: Scratch) -> None:
        """Write dq of a block, and add to the sums: of its heads, `b g s k` and `b g s v`, of the skewed diagonals."""
        q, total = scaled_queries(args, block), block.slice_rows(result.total)[..., None]
        # The weights are not divided by their total; dcontext and delta are instead: a row of dcontext is mostly
        # shorter than a row of weights.
        block_dcontext, block_delta = block.slice_queries(dcontext) / total, block.slice_rows(delta)[..., None] / total
        sum_dq = np.zeros_like(q)
        for sub_block, keys, hidden in visible_blocks(args, block):
            low, high = (np.inf, np.inf) if args.diagonal_bias is None else score_range(args, sub_block, keys)
            row_shift = sub_block.slice_rows(result.row_shift)[..., None]
            if high - np.min(row_shift, initial=np.inf) < cutoff:
                continue
            at, at_keys = block.index_of_sub_block(sub_block), np.s_[:, :, index_of(keys)]
            k, v = sub_block.slice_keys(args.k, keys), sub_block.slice_keys(args.v, keys)
            sub_block_q, sub_block_dcontext = by_kv_head(q[at], k), by_kv_head(block_dcontext[at], k)
            shape = (*q[at].shape[:3], k.shape[2])
            weights, dscores = scratch("weights", shape, dtype), scratch("dscores", shape, dtype)
            tanh_scores = scores_(args, sub_block, keys, q[at], weights)
            weights -= row_shift
            args.exp_(weights, cutoff if low - np.max(row_shift, initial=-np.inf) < cutoff else None)
            zero_hidden_(weights, hidden)
            sum_dv[at_keys] += by_kv_head(weights, k).swapaxes(2, 3) @ sub_block_dcontext
            np.matmul(sub_block_dcontext, v.swapaxes(2, 3), out=by_kv_head(dscores, k))
            dscores -= block_delta[at]  # `softmax_vjp`: p (dp - delta)
            dscores *= weights
            zero_hidden_(dscores, hidden)
            if dbiased is not None:
                sub_block.add_scores(dbiased, keys, dscores)
            if needs_diagonal_grad:
                add_to_diagonal_sums(diagonal_sums, dscores, sub_block.queries, keys, t)
            if tanh_scores is not None:
                tanh_slope = 1 - tanh_scores * tanh_scores
                zero_hidden_(tanh_slope, hidden)  # the slope at a hidden inf - inf is NaN
                dscores *= tanh_slope
            sum_dk[at_keys] += by_kv_head(dscores, k).swapaxes(2, 3) @ sub_block_q
            sum_dq[at] += (by_kv_head(dscores, k) @ k).reshape(q[at].shape)
        np.multiply(sum_dq, dtype.type(args.scale), out=block.slice_queries(dq))

    def add_blocks(blocks: list[QueryBlock]) -> None:
        """All blocks of some key/value heads: one thread does them, so that no two add to the same gradients."""
        keys = Span(0, args.band.s)
        out_dk, out_dv = blocks[0].slice_keys(dk, keys), blocks[0].slice_keys(dv, keys)
        sum_dk, sum_dv = np.zeros_like(out_dk, order="C"), np.zeros_like(out_dv, order="C")
        heads = [head for block in blocks for head in (block.heads.start, block.heads.stop)]
        heads = slice(min(heads), max(heads))
        skewed_sums = np.zeros(
            (heads.stop - heads.start, queries_per_strip, t + s - queries_per_strip) if needs_diagonal_grad else (0,),
            dtype,
        )
        scratch = Scratch()
        for block in blocks:
            at = slice(block.heads.start - heads.start, block.heads.stop - heads.start)
            add_block(block, sum_dk, sum_dv, skewed_sums[at], scratch)
        if ddiagonal_bias is not None:
            ddiagonal_bias[blocks[0].batch.start, heads] = pairs_to_diagonals(skewed_sums[None], t + s - 1)[0].sum(1)
        np.divide(sum_dk, dtype.type(args.exp_factor), out=out_dk)  # the queries were multiplied by it
        out_dv[...] = sum_dv

    blocks = query_blocks(args, 2 * -(-t // block_shape(args)[0]))
    by_heads = [list(blocks) for _, blocks in groupby(blocks, lambda block: (block.batch.start, block.kv_heads.start))]
    in_threads(add_blocks, lambda threads: by_heads)
    return dq, dk, dv, dbiased, None if ddiagonal_bias is None else ddiagonal_bias.sum(0)[None, :, None]
