"""Patterns for calls whose last query is not at the last key."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract._patterns import Pattern


@dataclass(frozen=True)
class ShiftedQueries(Pattern):
    """What a pattern shows to queries shifted by a number of positions."""

    pattern: Pattern
    shift: int

    def allows(self, query: Any, key: Any) -> Any:
        return self.pattern.allows(query + self.shift, key)


@dataclass(frozen=True)
class ShiftedQueriesPerSequence(Pattern):
    """What a pattern shows to queries shifted by a number of positions for each sequence, `b`."""

    pattern: Pattern
    shift: Any
    axes = {"shift": "b"}

    def allows(self, query: Any, key: Any) -> Any:
        return self.pattern.allows(query + self.shift, key)
