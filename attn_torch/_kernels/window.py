"""What positions and masks hide, before any scores are formed."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

# How many keys a query sees to the left and to the right of its own position; None for no limit.
Window = tuple[int | None, int | None]


def known(condition: Any) -> bool:
    """Whether a comparison of lengths holds for all lengths that a call stands for: compiled, they may vary."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy, which takes 0.3 s

    return statically_known_true(condition)


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


def hidden_to_zero(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: Window
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Select to 0 the keys that no query sees and the queries that see no key: what they hold can't leak.

    The mask comes back, or one that hides nothing where the window by itself may leave a query without a key.
    """
    (left, right), t, s = window, q.shape[1], k.shape[1]
    if mask is None:
        if (right is None or known(t - s <= right)) and (left is None or known(s - t <= left)):
            return q, k, v, None
        mask = torch.ones(1, 1, 1, s, dtype=torch.bool, device=q.device)
    keys, queries = seen(mask, window, t, s)
    shown = (q, queries), (k, keys), (v, keys)
    q, k, v = (x.masked_fill(~by_group(some, x.shape[2])[..., None], 0.0) for x, some in shown)
    return q, k, v, mask


def seen(mask: Tensor, window: Window, t: int, s: int) -> tuple[Tensor, Tensor]:
    """Which keys some query sees, `b s h`, and which queries see some key, `b t h`; axes of length 1 serve all."""
    left, right = window
    if mask.shape[2] > 1 or window == (None, None):
        allowed = mask if window == (None, None) else mask & near(window, t, s, mask.device)
        keys, queries = allowed.amax(2), allowed.amax(3)  # four times as fast as `any` on a CPU
    else:
        keys, at = mask[:, :, 0], torch.arange(t, device=mask.device) + (s - t)
        count = pad(keys.expand(*keys.shape[:2], s).cumsum(-1), (1, 0))  # the allowed keys before each
        start = 0 * at if left is None else (at - left).clamp(0, s)
        stop = 0 * at + s if right is None else (at + (right + 1)).clamp(0, s)
        queries = count[..., stop] > count[..., start]
    return keys.transpose(1, 2), queries.transpose(1, 2)


def near(window: Window, t: int, s: int, device: torch.device) -> Tensor:
    """Which keys are within the window of each query, `t s`."""
    left, right = window
    found = torch.ones(t, s, dtype=torch.bool, device=device)
    found = found if right is None else found.tril(s - t + right)
    return found if left is None else found.triu(s - t - left)


def by_group(some: Tensor, g: int) -> Tensor:
    """`b s h` -> `b s g`: what any query head of a key/value head has; one head, or g of them, are as they are."""
    return some if some.shape[2] in (1, g) else some.unflatten(2, (g, -1)).amax(3)
