"""What positions, patterns and masks hide, before any scores are formed."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_np.contract._patterns import Pattern, from_words
from attn_torch._masks import visibility, zero_unseen

# How many keys a query sees to the left and to the right of its own position; None for no limit.
Window = tuple[int | None, int | None]


def known(condition: Any) -> bool:
    """Whether a comparison of lengths holds for every length of a compiled call, whose lengths may vary."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy, which takes 0.3 s

    return statically_known_true(condition)


class PatternArrays(NamedTuple):
    """A pattern as operations of PyTorch take it: words, and the arrays of each kind of axes as one; None without any.

    Attributes:
        words: "" for no pattern.
        by_query, by_key, by_row: `b n t`, `b n s` and `b n`, integers.
    """

    words: str = ""
    by_query: Tensor | None = None
    by_key: Tensor | None = None
    by_row: Tensor | None = None

    @classmethod
    def of(cls, pattern: Pattern | None) -> "PatternArrays":
        if pattern is None:
            return cls()
        found = pattern.arrays()
        packed = ([x.long() for axes, x in found if axes == wanted] for wanted in ("b t", "b s", "b"))
        return cls(pattern.words(), *(torch.stack(arrays, 1) if arrays else None for arrays in packed))

    def pattern(self) -> Pattern | None:
        if not self.words:
            return None
        packed = zip(("b t", "b s", "b"), self[1:], strict=True)
        left = {axes: iter(() if x is None else x.unbind(1)) for axes, x in packed}
        return from_words(self.words, lambda axes: next(left[axes]))


def limits(causal: bool, window: Window | None, t: int, s: int) -> Window:
    """Causality and window as one; None where that hides nothing."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    left = None if left is None or known(left >= s - 1) else left
    return left, None if right is None or known(right >= t - 1) else right


def cut(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, window: Window
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Window]:
    """Everything without the first queries, which see no key, and the first keys, which no query sees."""
    (left, right), t, s = window, q.shape[1], k.shape[1]
    first_query = t - s - right if right is not None and known(t - s > right) else 0
    first_key = s - t - left if left is not None and known(s - t > left) else 0
    if first_query is first_key:  # both 0
        return q, k, v, mask, bias, window
    q, k, v = q[:, first_query:], k[:, first_key:], v[:, first_key:]
    mask, bias = (
        x if x is None else x[:, :, first_query if x.shape[2] > 1 else 0 :, first_key if x.shape[3] > 1 else 0 :]
        for x in (mask, bias)
    )
    return q, k, v, mask, bias, limits(False, window, q.shape[1], k.shape[1])


def zero_hidden(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: Window, pattern: Pattern | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Select keys that no query sees to 0, and queries that see no key: what they hold can't leak.

    The mask comes back, or one that hides nothing where the window by itself may leave a query without a key.
    """
    (left, right), t, s = window, q.shape[1], k.shape[1]
    if mask is None and pattern is None:
        if (right is None or known(t - s <= right)) and (left is None or known(s - t <= left)):
            return q, k, v, None
        mask = torch.ones(1, 1, 1, s, dtype=torch.bool, device=q.device)
    queries, keys = visibility(mask, t, s, like=q, window=window, pattern=pattern)
    keys = None if keys is None else by_group(keys, q.shape[2] // k.shape[2])
    k, v = (zero_unseen("bgts->bsgk", keys, x) for x in (k, v))
    return zero_unseen("bhts->bthk", queries, q), k, v, mask


def by_group(mask: Tensor, r: int) -> Tensor:
    """What any of the r query heads of a key/value head sees: `b h t s` -> `b g t s`."""
    return mask if mask.shape[1] == 1 or r == 1 else mask.unflatten(1, (-1, r)).amax(2)
