"""Masks: which keys each query may attend to, and zeros for positions that play no part."""

from math import inf
from typing import Any

from attn_np._ops import Array, any_over, arange, broadcast_to, clip, concatenate, cumsum, primitive, reorder, where
from attn_np.contract._band import Band, window_limits

Window = tuple[int | None, int | None] | None


def attention_mask(
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: Window = None,
    step: Any = None,
) -> Array | None:
    """Mask, causality and window as one boolean array, broadcastable to the scores; None if every key is visible.

    Query i is at position i + s - t: the last query is at the last key. In a step of decoding the cache gives the
    positions of queries and keys.
    """
    left, right = window_limits(window)
    right = 0 if causal else right
    if step is not None and step.start is None:
        limits = step.attention_mask(left, right)
    elif left is None and right is None:
        return mask
    else:
        s = s if step is None else step.start + t
        offset = arange(s, like)[None, :] - (arange(t, like)[:, None] + (s - t))
        left, right = s if left is None else left, t if right is None else right  # offsets go from 1 - s to t - 1
        limits = (offset >= -left) & (offset <= right)
    return limits if mask is None else limits & mask


def visibility(
    mask: Array | None, t: int, s: int, *, like: Array, causal: bool = False, window: Window = None
) -> tuple[Array | None, Array | None]:
    """Masks that `any_visible` reduces to queries that see any key and to keys that any query sees; None for all.

    A mask with rows for the queries is used for both. A mask of the keys alone, or none, needs no array of `t s`:
    causality and window leave each query a range of keys, and a running count of the mask says whether any is visible.
    """
    band = Band.of(t, s, causal, window)
    mask = mask.reshape((1,)) if mask is not None and mask.ndim == 0 else mask
    if s == 0 or (mask is not None and mask.ndim > 1 and mask.shape[-2] > 1):
        allowed = attention_mask(mask, t, s, like=like, causal=causal, window=window)
        return allowed, allowed
    first_key, first_query = band.first_key(), band.first_query()
    keys = mask
    if first_key > 0:
        after = (arange(s, like) >= first_key)[None, :]
        keys = after if mask is None else after & mask
    if mask is None or mask.shape[-1] == 1:
        queries = None if first_query == 0 else (arange(t, like) >= first_query)[:, None]
        return (queries if mask is None else mask if queries is None else queries & mask), keys
    if band.full:
        return mask, keys
    count = cumsum(mask, -1)
    count = concatenate([0 * count[..., :1], count], -1)
    at, left, right = arange(t, like) + (s - t), band.left, band.right
    start = clip(at - (s if left is None else left), 0, s)
    stop = clip(at + (s + t if right is None else right) + 1, 0, s)
    queries = count[..., stop] > count[..., start]
    return (queries[:, None] if queries.ndim == 1 else queries.swapaxes(-1, -2)), keys


def full_mask(mask: Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """A mask of this shape: the one that was passed, or True everywhere."""
    return broadcast_to(arange(shape[-1], like) >= 0 if mask is None else mask, shape)


def any_visible(spec: str, allowed: Array) -> Array:
    """The keys that any query sees, `any_visible("bhts->bs", allowed)`, or the queries that see any; broadcastable."""
    source, target = spec.split("->")
    allowed = allowed.reshape((1,) * (len(source) - allowed.ndim) + tuple(allowed.shape))
    visible = any_over(allowed, tuple(i for i, letter in enumerate(source) if letter not in target))
    letters = [letter for letter in source if letter in target]
    visible = reorder(visible, [letters.index(letter) for letter in target if letter in letters])
    return visible[tuple(slice(None) if letter in letters else None for letter in target)]


@primitive
def unmasked_by_bias(allowed: Array | None, bias: Array | None) -> Array | None:
    """The mask, with keys hidden also by a bias of -inf."""
    if bias is None:
        return allowed
    finite = bias != -inf
    return finite if allowed is None else finite & allowed


def zero_unseen(spec: str, allowed: Array | None, x: Any) -> Any:
    """x, set to 0 at keys that no query sees, `zero_unseen("bhts->bshk", allowed, k)`, or at queries that see no key,
    `zero_unseen("bhts->bthk", allowed, q)`. Even NaN there then reaches neither outputs nor gradients.
    """
    return x if allowed is None else where(any_visible(spec, allowed), x, 0.0)
