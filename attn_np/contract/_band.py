"""Who sees whom by position alone, as two numbers instead of a matrix, in the standard library only."""

from dataclasses import dataclass
from typing import NamedTuple

FAR = 1 << 30  # beyond every position; integers of 32 bits hold its sum with one


def window_limits(causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """How many keys before and after its own position a query sees; None for no limit, at most `FAR`."""
    left, right = (None if n is None else min(n, FAR) for n in window or (None, None))
    return left, 0 if causal else right


class Span(NamedTuple):
    """A block of queries or keys: `start` to `stop`, without the last."""

    start: int
    stop: int


@dataclass(frozen=True)
class Band:
    """Query i, which stands at i + s - t, sees the keys from `left` before it to `right` after it.

    Attributes:
        t, s: how many queries and keys.
        left, right: None for no limit on that side.
    """

    t: int
    s: int
    left: int | None = None
    right: int | None = None

    @classmethod
    def of(cls, t: int, s: int, causal: bool, window: tuple[int | None, int | None] | None) -> "Band":
        """What `causal` and `window` say: a query sees no later key, or so many before and after."""
        return cls(t, s, *window_limits(causal, window))

    @property
    def full(self) -> bool:
        """Every query sees every key."""
        return (self.right is None or self.right >= self.t - 1) and (self.left is None or self.left >= self.s - 1)

    def first_query(self) -> int:
        """The queries before this one see no key."""
        if self.s == 0:
            return self.t
        return 0 if self.right is None else min(self.t, max(0, self.t - self.s - self.right))

    def first_key(self) -> int:
        """The keys before this one are seen by no query."""
        if self.t == 0:
            return self.s
        return 0 if self.left is None else min(self.s, max(0, self.s - self.t - self.left))

    def keys(self, queries: Span) -> Span:
        """The keys that some of these queries see."""
        ahead = self.s - self.t
        start = 0 if self.left is None else max(0, queries.start + ahead - self.left)
        stop = self.s if self.right is None else min(self.s, queries.stop + ahead + self.right)
        return Span(start, max(start, stop))

    def queries(self, keys: Span) -> Span:
        """The queries that see some of these keys."""
        ahead = self.s - self.t
        start = 0 if self.right is None else max(0, keys.start - ahead - self.right)
        stop = self.t if self.left is None else min(self.t, keys.stop - ahead + self.left)
        return Span(start, max(start, stop))

    def covers(self, queries: Span, keys: Span) -> bool:
        """Each of these queries sees each of these keys."""
        ahead = self.s - self.t
        below = self.left is None or keys.start >= queries.stop - 1 + ahead - self.left
        return below and (self.right is None or keys.stop - 1 <= queries.start + ahead + self.right)
