"""A block of queries: some queries of some heads; the keys that they meet are passed beside it."""

from typing import Any, NamedTuple

import numpy as np

from attn_np.contract._band import Span
from attn_np.ops import Array

# Keys of a block: a span of them, or the indices of keys that lie apart, in ascending order.
Keys = Span | Array


def index_of(keys: Keys) -> Any:
    """What picks these keys from an axis: of a span a view, of indices a copy."""
    return slice(*keys) if isinstance(keys, Span) else keys


def by_kv_head(x: Array, k: Array) -> Array:
    """The rows of query heads that share a key/value head as one matrix, `b h t k` -> `b g (r t) k`."""
    return x.reshape(x.shape[0], k.shape[1], x.shape[1] // k.shape[1] * x.shape[2], x.shape[3])


class QueryBlock(NamedTuple):
    """Some queries of some heads, of one sequence of the batch, or of several short ones.

    Attributes:
        batch: the sequences.
        heads, kv_heads: the query heads, and the key/value heads that they use.
        queries: the queries.
    """

    batch: slice
    heads: slice
    kv_heads: slice
    queries: Span

    def slice_batch(self, x: Array) -> Array:
        """A view of an array whose first axis is the batch; all sequences share it where that axis has length 1."""
        return x[self.batch] if x.shape[0] > 1 else x

    def slice_queries(self, x: Array) -> Array:
        """A view of an array by queries, `b t h k` -> `b h t k`."""
        return x[self.batch, slice(*self.queries), self.heads].swapaxes(1, 2)

    def slice_keys(self, x: Array, keys: Keys) -> Array:
        """An array by keys, `b s g k` -> `b g s k`."""
        if isinstance(keys, Span):
            return x[self.batch, slice(*keys), self.kv_heads].swapaxes(1, 2)
        # The rows of a copy would lie as far apart as it has heads, and BLAS rounds by that: the backward pass, whose
        # blocks have fewer heads, would get other scores than the forward pass.
        return np.ascontiguousarray(x[self.batch, keys, self.kv_heads].swapaxes(1, 2))

    def slice_rows(self, x: Array) -> Array:
        """A view of an array with a number for each row, `b h t`."""
        return x[self.batch, self.heads, slice(*self.queries)]

    def score_index(self, shape: tuple[int, ...], keys: Keys) -> Any:
        """The index of the block in an array `b h t s` with axes of 1."""
        parts = self.batch, self.heads, slice(*self.queries), index_of(keys)
        return tuple(part if n > 1 else slice(None) for part, n in zip(parts, shape, strict=True))

    def add_scores(self, sums: Array, keys: Keys, scores: Array) -> None:
        """Add scores to those of the block in an array `b h t s`, or to their sums over all queries, `b h 1 s`: where
        all queries share a bias, such as a number for each key, no array of t s is needed.
        """
        sums[self.score_index(sums.shape, keys)] += scores if sums.shape[2] > 1 else scores.sum(2, keepdims=True)

    def slice_diagonals(self, x: Array, keys: Any, t: int) -> Array:
        """A view of an array by diagonal, `h n`: the diagonals of this block, with a span of keys."""
        heads, first = self.heads if len(x) > 1 else slice(None), t - self.queries.stop + keys.start
        return x[heads, first : first + self.queries.length + keys.length - 1]

    def index_of_sub_block(self, sub_block: "QueryBlock") -> tuple[slice, slice, slice]:
        """The index of a sub-block's queries in an array `b h t` of the block."""
        return np.s_[:, :, sub_block.queries.start - self.queries.start : sub_block.queries.stop - self.queries.start]
