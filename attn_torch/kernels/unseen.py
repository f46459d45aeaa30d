"""What positions, patterns and masks hide, set to 0 in inputs and -inf in scores; patterns packed for operations."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_np.contract._band import Limits
from attn_np.contract._patterns import ARRAY_AXES, Pattern, from_text
from attn_torch.attention.masks import query_and_key_masks, zero_unseen


def statically_true(condition: Any) -> bool:
    """Whether a comparison of lengths holds; in a compiled call, whose lengths may vary, for all of them."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy, which takes 0.3 s

    return statically_known_true(condition)


class PackedPattern(NamedTuple):
    """A pattern, packed as operations of PyTorch take it: a text, and the arrays of the same axes stacked along n.

    Attributes:
        text: "" for no pattern.
        by_query, by_key, by_batch: `b n t`, `b n s` and `b n`, integers; None without any.
    """

    text: str = ""
    by_query: Tensor | None = None
    by_key: Tensor | None = None
    by_batch: Tensor | None = None

    @classmethod
    def of(cls, pattern: Pattern | None) -> "PackedPattern":
        if pattern is None:
            return cls()
        arrays = pattern.arrays()
        groups = ([x.long() for axes, x in arrays if axes == wanted] for wanted in ARRAY_AXES)
        return cls(pattern.as_text(), *(torch.stack(group, 1) if group else None for group in groups))

    def pattern(self) -> Pattern | None:
        if not self.text:
            return None
        stacks = zip(ARRAY_AXES, self[1:], strict=True)
        remaining = {axes: iter(() if x is None else x.unbind(1)) for axes, x in stacks}
        return from_text(self.text, lambda axes: next(remaining[axes]))


def limits_of(causal: bool, window: Limits | None, t: int, s: int) -> Limits:
    """Causality and window as one pair (left, right); a side that hides nothing is None."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    left = None if left is None or statically_true(left >= s - 1) else left
    return left, None if right is None or statically_true(right >= t - 1) else right


def trim_unseen(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, limits: Limits
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Limits]:
    """The arguments without the first queries, if they see no key, and the first keys, if no query sees them."""
    (left, right), t, s = limits, q.shape[1], k.shape[1]
    first_query = t - s - right if right is not None and statically_true(t - s > right) else None
    first_key = s - t - left if left is not None and statically_true(s - t > left) else None
    if first_query is None and first_key is None:
        return q, k, v, mask, bias, limits
    q, k, v = q[:, first_query:], k[:, first_key:], v[:, first_key:]
    mask, bias = (
        x if x is None else x[:, :, first_query if x.shape[2] > 1 else 0 :, first_key if x.shape[3] > 1 else 0 :]
        for x in (mask, bias)
    )
    return q, k, v, mask, bias, limits_of(False, limits, q.shape[1], k.shape[1])


def zero_unseen_qkv(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, limits: Limits, pattern: Pattern | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v with 0 for keys that no query sees and queries that see no key, so that what these hold cannot leak; and
    the mask: one that hides nothing if there was none and the limits by themselves may leave a query without a key.
    """
    (left, right), t, s = limits, q.shape[1], k.shape[1]
    if mask is None and pattern is None:
        if (right is None or statically_true(t - s <= right)) and (left is None or statically_true(s - t <= left)):
            return q, k, v, None
        mask = torch.ones(1, 1, 1, s, dtype=torch.bool, device=q.device)
    query_mask, key_mask = query_and_key_masks(mask, t, s, like=q, window=limits, pattern=pattern)
    key_mask = None if key_mask is None else any_of_group(key_mask, q.shape[2] // k.shape[2])
    k, v = (zero_unseen("bgts->bsgk", key_mask, x) for x in (k, v))
    return zero_unseen("bhts->bthk", query_mask, q), k, v, mask


def any_of_group(mask: Tensor, r: int) -> Tensor:
    """What any of the r query heads of a key/value head sees: `b h t s` -> `b g t s`."""
    return mask if mask.shape[1] == 1 or r == 1 else mask.unflatten(1, (-1, r)).amax(2)


def disallowed_to_neg_inf_(scores: Tensor, allowed: Tensor) -> None:
    """Set scores that are not allowed to -inf in place; on a CPU by bits, three times as fast as `masked_fill_`."""
    if not scores.is_cpu:
        scores.masked_fill_(~allowed, -torch.inf)
        return
    integer = torch.int64 if scores.dtype == torch.float64 else torch.int32
    shown, bits = allowed.to(integer).neg_(), scores.view(integer)  # all ones or none
    bits.bitwise_and_(shown)
    bits.bitwise_or_(~shown & torch.tensor(-torch.inf, dtype=scores.dtype).view(integer))
