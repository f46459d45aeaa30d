"""Causality and windows as a band of the attention matrix: two numbers instead of an array."""

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

FAR = 1 << 30  # beyond every position; a position plus FAR fits in 32-bit integers

# How many keys before and after its own position a query sees; None for no limit on that side.
Limits = tuple[int | None, int | None]


def window_limits(window: Limits | None) -> Limits:
    """Left and right limit of a window, each at most `FAR`; both None for no window."""
    left, right = window or (None, None)
    return None if left is None else min(left, FAR), None if right is None else min(right, FAR)


class Span(NamedTuple):
    """A range of queries or keys: from `start` to `stop`, which is not part of it."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Band(NamedTuple):
    """The keys that queries see by position: query i, at position i + s - t, from `left` before to `right` after it.

    Attributes:
        t, s: how many queries and keys.
        left, right: None for no limit on that side.
    """

    t: int
    s: int
    left: int | None = None
    right: int | None = None

    @classmethod
    def of(cls, t: int, s: int, causal: bool, window: Limits | None) -> "Band":
        """The band of a causal mask and a window (left, right)."""
        left, right = (None, None) if window is None else window_limits(window)
        return cls(t, s, left, 0 if causal else right)

    @property
    def full(self) -> bool:
        """Whether every query sees every key."""
        return (self.right is None or self.right >= self.t - 1) and (self.left is None or self.left >= self.s - 1)

    def first_query(self) -> int:
        """Index of the first query that sees a key; t if none does."""
        if self.s == 0:
            return self.t
        return 0 if self.right is None else min(self.t, max(0, self.t - self.s - self.right))

    def first_key(self) -> int:
        """Index of the first key that a query sees; s if none is seen."""
        if self.t == 0:
            return self.s
        return 0 if self.left is None else min(self.s, max(0, self.s - self.t - self.left))

    def keys(self, queries: Span) -> Span:
        """The keys that any of these queries sees."""
        first_position = self.s - self.t
        start = 0 if self.left is None else max(0, queries.start + first_position - self.left)
        stop = self.s if self.right is None else min(self.s, queries.stop + first_position + self.right)
        return Span(start, max(start, stop))

    def row_blocks(self, max_pairs: int, min_rows: int) -> Iterator[tuple[Span, Span]]:
        """All queries in blocks, each with the keys that it may see.

        A block has about `max_pairs` pairs of a query and a key, or `min_rows` rows if that is more.
        Under a window with two limits (causality is a right limit of 0) a block has at most a quarter of the window's
        length in rows, or 4 `min_rows` if that is more: the corners of a longer one would be hidden.
        """
        start, most = 0, self.t
        if self.left is not None and self.right is not None:
            most = max(4 * min_rows, (self.left + self.right) // 4)
        while start < self.t:
            keys = self.keys(Span(start, min(start + min_rows, self.t)))
            rows = max_pairs // max(1, keys.length)
            if self.right is not None:
                # n rows see before + n keys, counted from the first key that the first row sees, and at most s. The
                # block gets the largest n that makes no more than `max_pairs` pairs.
                before = start + self.s - self.t + self.right - keys.start
                rows = max(max_pairs // max(1, self.s), (isqrt(before * before + 4 * max_pairs) - before) // 2)
            stop = min(self.t, start + min(most, max(min_rows, rows)))
            keys = self.keys(Span(start, stop))
            first = min(keys.start, self.s - 1)  # one key at least: scores of no keys have no maximum
            yield Span(start, stop), Span(first, max(keys.stop, first + 1))
            start = stop

    def queries(self, keys: Span) -> Span:
        """The queries that see any of these keys."""
        first_position = self.s - self.t
        start = 0 if self.right is None else max(0, keys.start - first_position - self.right)
        stop = self.t if self.left is None else min(self.t, keys.stop - first_position + self.left)
        return Span(start, max(start, stop))

    def covers(self, queries: Span, keys: Span) -> bool:
        """Whether each of these queries sees each of these keys."""
        first_position = self.s - self.t
        last_sees_first = self.left is None or keys.start >= queries.stop - 1 + first_position - self.left
        first_sees_last = self.right is None or keys.stop - 1 <= queries.start + first_position + self.right
        return last_sees_first and first_sees_last
