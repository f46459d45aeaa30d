"""Blocks of queries: a part of the scores at a time, in memory that grows with t, not with t s.

A block of queries meets all keys that its window leaves, or that a pattern may show to one of them, at once: so its
softmax is an ordinary one, and what is hidden by position is hardly ever computed. Its scores become weights in place,
mostly in a processor's cache, and then are gone: the backward pass computes them again (Chen et al. 2016,
arXiv:1604.06174; Dao et al. 2022, arXiv:2205.14135).

Forward and backward are operations of their own. Compiled programs do not look into them, so lengths may vary there.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, threshold_
from torch.autograd import Function
from torch.nn.functional import pad

import attn_torch.kernels.sdpa as sdpa
from attn_np.contract import _patterns as patterns
from attn_torch.attention.masks import block_table, hide_neg_inf, visible_pairs
from attn_torch.kernels.unseen import PackedPattern, disallowed_to_neg_inf_
from attn_torch.ops import without_autocast

PACKAGE = __name__.split(".")[0]

# A block takes more heads up to this many scores: on a CPU they should stay in its caches, a GPU wants large products.
CPU_SCORES, GPU_SCORES = 2**20, 2**25
CPU_QUERIES, GPU_QUERIES = 128, 1024  # of one head in a block
PATTERN_KEYS = 64  # a pattern is asked about this many keys at a time
ALL = slice(None)


class Block(NamedTuple):
    """A part of a call.

    Attributes:
        batch, kv_heads, queries: the part of the batch, of the key/value heads and of the queries.
        keys: the keys, as a slice, or as indices where they are scattered. After `with_sink` the first entry is that of
            the sink: arrays of keys then have an entry for it before the first key.
        allowed: who sees whom by mask, bias and pattern, `b g r t s` with axes of 1; None if none hides. `mask_block_`
            adds the window, which a pattern already contains.
        partly_visible_keys: the keys that `allowed` is about, counted from the block's first key: every query sees the
            others.
        empty_rows, unseen_keys: under a pattern, which queries see no key, `b g r t 1`, and which keys no query sees,
            `b g s 1`, the column of the sink among them; None where there are none.
    """

    batch: slice
    kv_heads: slice
    queries: slice
    keys: slice | Tensor
    allowed: Tensor | None = None
    partly_visible_keys: slice = ALL
    empty_rows: Tensor | None = None
    unseen_keys: Tensor | None = None

    def part(self, x: Tensor, axes: str) -> Tensor:
        """The block's part of an array; an axis of length 1 serves all. Of scattered keys it is a copy."""
        parts = {"b": self.batch, "g": self.kv_heads, "t": self.queries, "s": self.keys}
        index = (parts.get(a, slice(None)) if n > 1 else slice(None) for a, n in zip(axes, x.shape, strict=True))
        return x[tuple(index)]

    def add(self, total: Tensor, axes: str, x: Tensor) -> None:
        """Add x, summed over the axes that have length 1 in `total`, to the block's part of `total`."""
        key_axis = axes.find("s")
        has_keys = key_axis >= 0 and total.shape[key_axis] > 1
        scattered = self.keys if isinstance(self.keys, Tensor) and has_keys else None
        part = (self if scattered is None else self._replace(keys=slice(None))).part(total, axes)
        shape = list(part.shape)
        if scattered is not None:
            shape[key_axis] = len(scattered)
        x = x.view(shape) if x.numel() == prod(shape) else x.sum_to_size(shape)
        if scattered is None:
            part += x
        else:
            part.index_add_(key_axis, scattered, x)


class BlockedCall:
    """A call cut into blocks, its arrays with their heads first: q `b g r t k`, k `b g s k`, masks `b g r t s`.

    A sink is a column of scores before those of a block's keys: its score is written over the product, its weight is
    set to 0 after the softmax. Keys and values begin with an entry of zeros for it.

    A bias by diagonal is stored as `b g r t n`, skewed for one block of queries; a later block reads the same rows
    further to the left.
    """

    def __init__(self, *inputs: Any) -> None:
        (
            q,
            k,
            v,
            mask,
            bias,
            sinks,
            *pattern_arrays,
            skewed_bias,
            self.left,
            self.right,
            self.scale,
            self.softcap,
            pattern_text,
        ) = inputs
        (self.b, self.t, h, _), (self.s, self.g) = q.shape, k.shape[1:3]
        self.r, self.sink_columns = h // self.g, 0 if sinks is None else 1
        self.q = self.heads_first(q * self.scale)
        self.k, self.v = (pad(x.transpose(1, 2), (0, 0, self.sink_columns, 0)).contiguous() for x in (k, v))
        self.mask, self.bias = (None if x is None else self.by_group(x) for x in (mask, bias))
        self.sinks = None if sinks is None else self.by_group(sinks)
        self.max_scores = CPU_SCORES if q.device.type == "cpu" else GPU_SCORES
        self.block_queries = queries_per_block(q, PackedPattern(pattern_text, *pattern_arrays))
        self.skewed_bias = None if skewed_bias is None else self.by_group(skewed_bias)
        diagonals = None if skewed_bias is None else diagonals_of(skewed_bias)
        self.skewed_bias_hides = diagonals is not None and bool((diagonals == -torch.inf).any())
        self.effective_windows: list[tuple[int, int]] | None = None
        if diagonals is not None and mask is bias is None and not pattern_text and self.t <= self.s:
            self.effective_windows = self.effective_windows_of(~sdpa.negligible_diagonals(q, k, diagonals, self.scale))
        self.pattern: patterns.Pattern | None = None
        if pattern_text:  # of which causality and the window are a part, then
            pattern: Any = PackedPattern(pattern_text, *pattern_arrays).pattern()
            self.pattern = pattern = patterns.Window(self.left, self.right) & pattern
            self.left = self.right = None
            self.pattern_table = block_table(pattern, self.t, self.s, self.block_queries, PATTERN_KEYS, like=q)
        square = torch.ones(self.block_queries, self.block_queries, dtype=torch.bool, device=q.device)
        self.upper_triangle = square.triu()  # with the diagonal
        self.buffers: dict[str, Tensor] = {}

    def heads_first(self, x: Tensor) -> Tensor:
        """`b t h k` -> `b g r t k`."""
        return x.unflatten(2, (self.g, self.r)).permute(0, 2, 3, 1, 4)

    def by_group(self, x: Tensor) -> Tensor:
        """`b h ...` -> `b g r ...`; one head serves all."""
        return x.unflatten(1, (1, 1) if x.shape[1] == 1 else (self.g, self.r))

    def effective_windows_of(self, significant: Tensor) -> list[tuple[int, int]] | None:
        """For each key/value head, how many keys before and after a query's own position have weights that count:
        `significant`, `b h 1 n`, marks the diagonals of these. None where all count.
        """
        if bool(significant.all()):
            return None
        significant_by_head = significant.any(0).any(1)
        if len(significant_by_head) > 1:
            groups = significant_by_head.unflatten(0, (self.g, self.r)).any(1)
        else:
            groups = significant_by_head.expand(self.g, -1)
        own_diagonal = self.s - 1
        ends = [group.nonzero()[[0, -1], 0].tolist() for group in groups]  # a query's own key has a weight
        return [(own_diagonal - first, last - own_diagonal) for first, last in ends]

    def keys_in_effective_window(self, kv_heads: slice, queries: slice, keys: slice) -> slice:
        """Those of the keys that have a weight for any of these queries."""
        if self.effective_windows is None:
            return keys
        (left, right), first_position = self.effective_windows[kv_heads.start], self.s - self.t
        start, stop = queries.start + first_position - left, queries.stop + first_position + right
        return slice(max(keys.start, start), min(keys.stop, stop))

    def blocks(self) -> Iterator[Block]:
        """From the first query to the last, with every key that a query of the block may see. Under a pattern,
        blocks that may see no key are left out, unless there are sinks.
        """
        for start in range(0, self.t, self.block_queries):
            queries, first_position = slice(start, min(start + self.block_queries, self.t)), self.s - self.t
            key_start = 0 if self.left is None else max(0, queries.start + first_position - self.left)
            key_stop = self.s if self.right is None else min(self.s, queries.stop + first_position + self.right)
            window_keys = slice(key_start, max(key_start, key_stop))
            keys = window_keys if self.pattern is None else self.keys_of_pattern(slice(self.b), queries)
            # A head of one sequence counts as one: it may be more than g, and a block then has several sequences.
            sequence_heads_per_block = max(1, self.max_scores // (self.r * self.block_queries * max(1, count(keys))))
            if self.effective_windows is not None:  # each has a window of its own
                sequence_heads_per_block = 1
            if self.pattern is not None and self.sequences_differ(queries):
                sequence_heads_per_block = min(sequence_heads_per_block, self.g)
            for batch, kv_heads in batch_and_heads(self.b, self.g, sequence_heads_per_block):
                keys = (
                    self.keys_in_effective_window(kv_heads, queries, window_keys)
                    if self.pattern is None
                    else self.keys_of_pattern(batch, queries)
                )
                if self.pattern is None or self.sink_columns or count(keys) > 0:
                    yield self.with_sink(self.with_mask(Block(batch, kv_heads, queries, keys)))

    def sequences_differ(self, queries: slice) -> bool:
        """Whether, at these queries, the sequences may see such different keys that their union has more than 1.5 times
        the blocks of the one that may see most.
        """
        may_see = self.pattern_table.possible[:, queries.start // self.block_queries]
        return len(may_see) > 1 and 2 * int(may_see.any(0).sum()) > 3 * int(may_see.sum(1).amax())

    def keys_of_pattern(self, batch: slice, queries: slice) -> slice | Tensor:
        """The keys that the pattern may show to these queries: a slice, or the indices of keys that are scattered."""
        if self.s == 1:
            return slice(0, 1)
        may_see = slice_batch(self.pattern_table.possible, batch)[:, queries.start // self.block_queries]
        key_pieces = may_see.any(0).nonzero()[:, 0]
        start, stop = (int(key_pieces[0]), int(key_pieces[-1]) + 1) if len(key_pieces) > 0 else (0, 0)
        if 0 < len(key_pieces) == stop - start:
            return slice(start * PATTERN_KEYS, min(self.s, stop * PATTERN_KEYS))
        keys = (key_pieces[:, None] * PATTERN_KEYS + torch.arange(PATTERN_KEYS, device=key_pieces.device)).flatten()
        return keys[: len(keys) - max(0, stop * PATTERN_KEYS - self.s)]

    def with_mask(self, block: Block) -> Block:
        """The block with who sees whom by mask, bias and pattern."""
        mask, bias = (None if x is None else block.part(x, "bgrts") for x in (self.mask, self.bias))
        block = block._replace(allowed=hide_neg_inf(mask, bias))
        if self.skewed_bias is not None and self.skewed_bias_hides:
            skewed_bias = self.in_skewed_bias(block).part(self.skewed_bias, "bgrts")
            block = block._replace(allowed=hide_neg_inf(block.allowed, skewed_bias))
        if self.pattern is None:
            return block
        positions = torch.arange(self.s, dtype=torch.int32, device=self.q.device)
        key_positions, span = positions[block.keys], (block.queries.start, block.queries.stop)
        query_indices = torch.arange(*span, device=self.q.device).int()
        if block.allowed is None and len(key_positions) > 0:
            surely_see = slice_batch(self.pattern_table.certain, block.batch)
            surely_see = surely_see[:, block.queries.start // self.block_queries].all(0)
            unsure = (~surely_see[key_positions // PATTERN_KEYS]).nonzero()[:, 0]
            if len(unsure) == 0:
                return block
            first, last = int(unsure[0]), int(unsure[-1])
            everywhere = last - first == len(key_positions) - 1
            block = block._replace(partly_visible_keys=ALL if everywhere else slice(first, last + 1))
        key_positions = key_positions[block.partly_visible_keys]
        parts = {"b t": (slice(None), block.queries), "b s": (slice(None), key_positions.long()), "b": (slice(None),)}
        pattern = self.pattern.map(lambda axes, x: slice_batch(x, block.batch)[parts[axes]])
        pairs = visible_pairs(pattern, query_indices[None] + (self.s - self.t), key_positions[None])[:, None]
        allowed = pairs if block.allowed is None else pairs & block.allowed
        seen, empty_rows = any_of(any_of(allowed, 3), 2), ~any_of(allowed, -1)[..., None]
        if block.partly_visible_keys != ALL:
            seen_partly, seen, empty_rows = seen, seen.new_ones(*seen.shape[:2], count(block.keys)), None
            seen[..., block.partly_visible_keys] = seen_partly
        return block._replace(
            allowed=allowed, empty_rows=empty_rows, unseen_keys=~pad(seen, (self.sink_columns, 0))[..., None]
        )

    def with_sink(self, block: Block) -> Block:
        """The block with a column for the sink before its keys, if there are sinks."""
        if not self.sink_columns:
            return block
        if isinstance(block.keys, slice):
            return block._replace(keys=slice(block.keys.start, block.keys.stop + 1))
        return block._replace(keys=pad(block.keys + 1, (1, 0)))

    def without_sink(self, block: Block) -> Block:
        """The block with its keys alone: the inverse of `with_sink`."""
        if not self.sink_columns:
            return block
        if isinstance(block.keys, slice):
            return block._replace(keys=slice(block.keys.start, block.keys.stop - 1))
        return block._replace(keys=block.keys[1:] - 1)

    def in_skewed_bias(self, block: Block) -> Block:
        """Where a block without a sink stands in the skewed bias: its last query is the last row."""
        num_queries, shift = block.queries.stop - block.queries.start, self.t - block.queries.stop
        keys = block.keys
        keys = slice(keys.start + shift, keys.stop + shift) if isinstance(keys, slice) else keys + shift
        return block._replace(queries=slice(self.block_queries - num_queries, self.block_queries), keys=keys)

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x y for each head."""
        return torch.bmm(x, y, out=self.scratch(name, (*x.shape[:-1], y.shape[-1])))

    def scratch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory for a result, reused from the last result of this name: allocating takes longer than computing."""
        if name not in self.buffers or self.buffers[name].numel() < prod(shape):
            self.buffers[name] = self.q.new_empty(prod(shape))
        return self.buffers[name][: prod(shape)].view(shape)

    def along_queries(self, x: Tensor, block: Block) -> Tensor:
        """A block's part of an array by queries: `b g r t k` -> `(b g) (r t) k`."""
        part = block.part(x, "bgrtk")
        if block.empty_rows is not None:  # 0 times the NaN of a query that sees no key would be NaN
            part = part.masked_fill(block.empty_rows, 0.0)
        return part.flatten(2, 3).flatten(0, 1)

    def along_keys(self, x: Tensor, block: Block) -> Tensor:
        """A block's part of an array by keys: `b g s k` -> `(b g) s k`."""
        part = block.part(x, "bgsk")
        if block.unseen_keys is not None:
            part = part.masked_fill(block.unseen_keys, 0.0)
        elif self.sink_columns and isinstance(block.keys, slice) and block.keys.start > 0:
            part = pad(part[:, :, 1:], (0, 0, 1, 0))  # the sink's entry is 0: here it is the key before the block's
        return part.flatten(0, 1)

    def split_axes(self, x: Tensor, block: Block) -> Tensor:
        """`(b g) (r t) s` -> `b g r t s`."""
        b, g, t = (part.stop - part.start for part in (block.batch, block.kv_heads, block.queries))
        return x.view(b, g, self.r, t, x.shape[-1])

    def mask_block_(self, scores: Tensor, block: Block) -> Tensor | None:
        """Set hidden scores, `b g r t s` without sinks, to -inf in place; returns which queries see no key.

        Positions hide a triangle of keys at either end of the block. None is returned where these alone hide: then
        every query sees a key.
        """
        num_queries, num_keys = scores.shape[-2:]
        first_key = block.keys.start if isinstance(block.keys, slice) else 0
        own_key = block.queries.start + self.s - self.t - first_key  # at the first query's position, in the block
        edges = []  # keys at an end of the block, and the triangle of their scores outside of the window
        if self.right is not None and (first_hidden := own_key + self.right + 1) < num_keys:
            edges.append((slice(first_hidden, num_keys), self.upper_triangle[:num_queries, : num_keys - first_hidden]))
        if self.left is not None and (stop := min(num_keys, own_key - self.left + num_queries - 1)) > 0:
            column = self.left - own_key
            edges.append((slice(stop), ~self.upper_triangle[:num_queries, column : column + stop]))
        allowed = block.allowed
        if allowed is None:
            for edge, outside in edges:
                scores[..., edge].masked_fill_(outside, -torch.inf)
            return None
        if edges:
            allowed = allowed.expand(*allowed.shape[:3], num_queries, num_keys).clone()
            for edge, outside in edges:
                allowed[..., edge] &= ~outside
        disallowed_to_neg_inf_(scores[..., block.partly_visible_keys], allowed)
        if self.pattern is not None:
            return block.empty_rows
        return ~allowed.any(-1, keepdim=True)

    def scores(self, block: Block) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The scores, `(b g) (r t) s`; the queries that see neither key nor sink; the tanh of the softcap, None without
        one.
        """
        scores = self.product("scores", self.along_queries(self.q, block), self.along_keys(self.k, block).mT)
        tanh_scores = None
        if self.softcap is not None:
            tanh_scores = scores.div_(self.softcap).tanh_()
            scores = torch.mul(tanh_scores, self.softcap, out=self.scratch("capped", tanh_scores.shape))
        scores_by_axes, key_block = self.split_axes(scores, block), self.without_sink(block)
        key_scores = scores_by_axes[..., self.sink_columns :]
        if self.bias is not None:
            key_scores += key_block.part(self.bias, "bgrts")
        if self.skewed_bias is not None:
            key_scores += self.in_skewed_bias(key_block).part(self.skewed_bias, "bgrts")
        empty_rows = self.mask_block_(key_scores, key_block)
        if self.sinks is not None:
            sinks = block.part(self.sinks, "bgr")[..., None]
            scores_by_axes[..., 0] = sinks
            if empty_rows is not None:  # a row with a sink is not empty
                empty_rows = empty_rows & (sinks == -torch.inf)[..., None]
        return scores, empty_rows, tanh_scores


def diagonals_of(skewed_bias: Tensor) -> Tensor:
    """The bias by diagonal, one number for each diagonal, that a skewed bias is made of: `b h t n` -> `b h 1 m`."""
    last_column = skewed_bias[:, :, :-1, -1:].flip(2).mT  # a row has fewer diagonals than rows, if keys are few
    return torch.cat([skewed_bias[:, :, -1:], last_column], -1)


def queries_per_block(q: Tensor, pattern: PackedPattern) -> int:
    """How many queries of one head are in a block."""
    num_queries = CPU_QUERIES if q.device.type == "cpu" else GPU_QUERIES
    if pattern.by_query is not None:  # each query may see other keys: smaller blocks waste less work on hidden scores
        num_queries = -(-num_queries // 2)
    return min(q.shape[1], num_queries)


def any_of(x: Tensor, dim: int) -> Tensor:
    """`any` as the largest byte, in a quarter of the time on a CPU."""
    return x.any(dim) if 0 in x.shape else x.view(torch.uint8).amax(dim).view(torch.bool)


def count(keys: slice | Tensor) -> int:
    """How many keys a slice or an array of indices names."""
    return keys.stop - keys.start if isinstance(keys, slice) else len(keys)


def slice_batch(x: Tensor, batch: slice) -> Tensor:
    """A part of an array whose first axis is the batch; all sequences share it where that axis has length 1."""
    return x[batch] if x.shape[0] > 1 else x


def batch_and_heads(b: int, g: int, sequence_heads_per_block: int) -> Iterator[tuple[slice, slice]]:
    """Parts with about so many heads, counted over sequences: all heads of some sequences, or some heads of one."""
    sequences, heads = max(1, sequence_heads_per_block // g), min(sequence_heads_per_block, g)
    for i in range(0, b, sequences):
        for j in range(0, g, heads):
            yield slice(i, min(i + sequences, b)), slice(j, min(j + heads, g))


# Operations -----------------------------------------------------------------------------------------------------------


NUM_ARRAYS = 10  # so many inputs are arrays: the last is the skewed bias, before it come those of `PackedPattern`
SCHEMA = "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks"
SCHEMA += ", Tensor? pattern_by_query, Tensor? pattern_by_key, Tensor? pattern_by_batch, Tensor? skewed_bias"
SCHEMA += ", SymInt? left, SymInt? right, float scale, float? softcap, str pattern_text"
Outputs = tuple[Tensor, Tensor]


@torch.library.custom_op(
    f"{PACKAGE}::blocks", mutates_args=(), schema=f"({SCHEMA}, bool return_lse) -> (Tensor, Tensor)"
)
@without_autocast
def blocks_forward(*inputs: Any) -> Outputs:
    """The context, `b t h v`, and the lse, `b h t`, of size 0 unless it is asked for; masks have four axes, sinks are
    `1 h` or `b h`. Where PyTorch's own kernel takes a bias by diagonal, it computes the context.
    """
    *call_inputs, return_lse = inputs
    q, k, v, mask, bias, sinks, *_, skewed_bias, left, right, scale, softcap, pattern_text = call_inputs
    sdpa_eligible = mask is bias is sinks is softcap is None and not pattern_text and not return_lse
    if skewed_bias is not None and q.is_cpu and sdpa_eligible:
        context = sdpa.attend_by_diagonals(q, k, v, diagonals_of(skewed_bias), (left, right), scale)
        return context.contiguous(), outputs_like(*inputs)[1]
    call, (context, lse) = BlockedCall(*call_inputs), outputs_like(*inputs)
    lse.fill_(-torch.inf)  # that of blocks without a key
    if call.pattern is not None:  # of queries that are in no block
        context.zero_()
    by_heads = call.heads_first(context)
    for block in call.blocks():
        scores, empty_rows, _ = call.scores(block)
        top = scores.amax(-1, keepdim=True) if return_lse and scores.shape[-1] > 0 else None
        probs = torch.softmax(scores, -1, out=scores)
        if top is not None:  # the largest weight is exp(top - lse): two passes for `logsumexp`'s four, and no copy
            block_lse = torch.where(top.isinf(), top, top - probs.amax(-1, keepdim=True).log_())
            block.part(call.by_group(lse), "bgrt").copy_(call.split_axes(block_lse, block)[..., 0])
        if call.sink_columns:
            probs[..., 0] = 0.0
        part = call.split_axes(call.product("context", probs, call.along_keys(call.v, block)), block)
        block.part(by_heads, "bgrtk").copy_(part if empty_rows is None else part.masked_fill_(empty_rows, 0.0))
    return context, lse


@torch.library.custom_op(
    f"{PACKAGE}::blocks_backward",
    mutates_args=(),
    schema=f"(Tensor dcontext, Tensor delta, {SCHEMA}, bool needs_dbias, bool needs_dskewed_bias) -> Tensor[]",
)
@without_autocast
def blocks_backward(dcontext: Tensor, delta: Tensor, *inputs: Any) -> list[Tensor]:
    """The gradients of q, k and v, of the sinks if there are any, of the bias and the skewed bias if asked for.

    Every block's weights again, then the rules of the textbook. delta, `b t h 1`, is what the softmax's rule needs of
    each row.
    """
    *forward_inputs, needs_dbias, needs_dskewed_bias = inputs
    call = BlockedCall(*forward_inputs)
    dq = torch.zeros_like(inputs[0])
    # By width, `b g k s`: with the short factor first a product takes 0.6 of the time of its transpose.
    dk, dv = (x.new_zeros(x.mT.shape) for x in (call.k, call.v))
    dsinks = None if call.sinks is None else torch.zeros_like(call.sinks)
    dbias = torch.zeros_like(call.bias) if call.bias is not None and needs_dbias else None
    dskewed_bias = torch.zeros_like(call.skewed_bias) if call.skewed_bias is not None and needs_dskewed_bias else None
    dcontext, dq_heads_first = call.heads_first(dcontext).contiguous(), call.heads_first(dq)
    delta = call.heads_first(delta)
    for block in call.blocks():
        scores, empty_rows, tanh_scores = call.scores(block)
        probs = torch.softmax(scores, -1, out=scores)
        if empty_rows is not None:
            call.split_axes(probs, block).masked_fill_(empty_rows, 0.0)
        if call.effective_windows is not None:  # weights of far keys may be subnormal, and slow
            threshold_(probs, torch.finfo(probs.dtype).tiny, 0.0)
        block_dcontext = call.along_queries(dcontext, block)
        dscores = call.product("dprobs", block_dcontext, call.along_keys(call.v, block).mT)
        if dsinks is not None:
            dscores[..., 0] = 0.0
        # Not by `along_queries`, which zeroes rows without a key: the lse's gradient reaches the sink of these.
        dscores.sub_(block.part(delta, "bgrtk").flatten(2, 3).flatten(0, 1)).mul_(probs)
        dscores_by_axes = call.split_axes(dscores, block)
        if dsinks is not None:
            block.add(dsinks, "bgr", dscores_by_axes[..., 0].sum(-1))
            probs[..., 0] = dscores[..., 0] = 0.0
        block.add(dv, "bgks", call.product("dv", block_dcontext.mT, probs))
        if dbias is not None:
            call.without_sink(block).add(dbias, "bgrts", dscores_by_axes[..., call.sink_columns :])
        if dskewed_bias is not None:
            call.in_skewed_bias(call.without_sink(block)).add(
                dskewed_bias, "bgrts", dscores_by_axes[..., call.sink_columns :]
            )
        if tanh_scores is not None:
            tanh_slope = tanh_scores.square_().neg_().add_(1.0)
            dscores.mul_(tanh_slope.masked_fill_(probs == 0, 0.0))  # the slope at a hidden inf - inf is NaN
        block.add(dk, "bgks", call.product("dk", call.along_queries(call.q, block).mT, dscores))
        block_dq = call.product("dq", dscores, call.along_keys(call.k, block))
        block.part(dq_heads_first, "bgrtk").copy_(call.split_axes(block_dq, block))
    dk, dv = (x[..., call.sink_columns :].permute(0, 3, 1, 2).contiguous() for x in (dk, dv))
    return [dq * call.scale, dk, dv, *(x.flatten(1, 2) for x in (dsinks, dbias, dskewed_bias) if x is not None)]


@blocks_forward.register_fake
def outputs_like(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Outputs:
    (b, t, h, _), return_lse = q.shape, rest[-1]
    return q.new_empty((b, t, h, v.shape[-1])), q.new_empty((b, h, t if return_lse else 0))


@blocks_backward.register_fake
def _(dcontext: Tensor, delta: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    differentiated = rest[2], rest[1] if rest[-2] else None, rest[6] if rest[-1] else None
    return [x.new_empty(x.shape) for x in (q, k, v, *differentiated) if x is not None]


# Derivatives and vmap -------------------------------------------------------------------------------------------------


class BlockAttention(Function):
    """`blocks_forward` with its derivatives. torch.compile wants the arguments spelled out, not as `*args`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q, k, v, mask, bias, sinks, pattern_by_query, pattern_by_key, pattern_by_batch, skewed_bias, left, right,
        scale, softcap, pattern_text, return_lse,
    ):  # fmt: skip
        arrays = q, k, v, mask, bias, sinks, pattern_by_query, pattern_by_key, pattern_by_batch, skewed_bias
        return blocks_forward(*arrays, left, right, scale, softcap, pattern_text, return_lse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        ctx.save_for_backward(output[0], *inputs[:NUM_ARRAYS])
        *ctx.options, ctx.return_lse = inputs[NUM_ARRAYS:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        dcontext, dlse = grad_outputs
        context, *arrays = ctx.saved_tensors  # read once: under a checkpoint, reading frees them
        has_sinks = arrays[5] is not None
        # A bias may be as large as all scores.
        needs_dbias, needs_dskewed_bias = ctx.needs_input_grad[4], ctx.needs_input_grad[NUM_ARRAYS - 1]
        # The sum over the keys of probs dprobs is that of dcontext context over the width; the lse adds probs dlse to
        # dscores.
        delta = (dcontext * context).sum(-1, keepdim=True)
        delta = delta - dlse.mT[..., None] if ctx.return_lse else delta
        dq, dk, dv, *more = BlockGradients.apply(
            dcontext, delta, *arrays, *ctx.options, needs_dbias, needs_dskewed_bias
        )
        dsinks, dbias, dskewed_bias = (
            more.pop(0) if present else None for present in (has_sinks, needs_dbias, needs_dskewed_bias)
        )
        return dq, dk, dv, None, dbias, dsinks, None, None, None, dskewed_bias, *[None] * 6


class BlockGradients(Function):
    """`blocks_backward`, which has no derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        dcontext, delta, q, k, v, mask, bias, sinks, pattern_by_query, pattern_by_key, pattern_by_batch, skewed_bias,
        left, right, scale, softcap, pattern_text, needs_dbias, needs_dskewed_bias,
    ):  # fmt: skip
        arrays = q, k, v, mask, bias, sinks, pattern_by_query, pattern_by_key, pattern_by_batch, skewed_bias
        return tuple(
            blocks_backward(
                dcontext, delta, *arrays, left, right, scale, softcap, pattern_text, needs_dbias, needs_dskewed_bias
            )
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "attend: expected derivatives of the first order, got a second; set implementation='textbook'"
        )


def into_batch(n: int, dims: tuple[Any, ...], arrays: tuple[Any, ...]) -> list[Any]:
    """The arrays with the axis that `vmap` maps and the axis of the batch as one."""
    mapped_first = [
        x if x is None else x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(arrays, dims, strict=True)
    ]
    b = max(x.shape[1] for x in mapped_first if x is not None)
    return [x if x is None else x.expand(n, b, *x.shape[2:]).flatten(0, 1) for x in mapped_first]


@blocks_forward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Outputs, tuple[int, int]]:
    n = info.batch_size
    context, lse = blocks_forward(*into_batch(n, in_dims[:NUM_ARRAYS], inputs[:NUM_ARRAYS]), *inputs[NUM_ARRAYS:])
    return (context.unflatten(0, (n, -1)), lse.unflatten(0, (n, -1))), (0, 0)


@blocks_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[list[Tensor], list[int]]:
    n, num_arrays = info.batch_size, NUM_ARRAYS + 2
    gradients = blocks_backward(*into_batch(n, in_dims[:num_arrays], inputs[:num_arrays]), *inputs[num_arrays:])
    gradients = [x.unflatten(0, (n, -1)) for x in gradients]
    unmapped = [x if dim is None else x.select(dim, 0) for x, dim in zip(inputs[:num_arrays], in_dims, strict=False)]
    needs_dbias, needs_dskewed_bias = inputs[-2:]
    differentiated = unmapped[7], unmapped[6] if needs_dbias else None, unmapped[11] if needs_dskewed_bias else None
    shared = [x.shape[0] == 1 for x in differentiated if x is not None]  # by the whole batch
    for i in range(3, len(gradients)):
        gradients[i] = gradients[i].sum(1, keepdim=True) if shared[i - 3] else gradients[i]
    return gradients, [0 for _ in gradients]
