"""Who may attend to whom: masks, causality and windows, and what they hide from everyone."""

from typing import Any

import numpy as np

from attn_np._ops import Array, Tape, arange, clip, concatenate, cumsum, primitive
from attn_np.contract._band import Band

__all__ = [
    "Sight",
    "hide",
    "seen",
    "shown",
    "sight",
    "visible",
]


def visible(
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    past: Any = None,
) -> Array | None:
    """Mask, causality and window as one boolean array, broadcastable to the scores; None where every key is seen.

    Query i stands at position i + s - t: the last query stands at the last key. In a step of decoding queries and keys
    stand where the cache says.
    """
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    if past is not None and past.start is None:
        near = past.visible(left, right)
    elif left is None and right is None:
        return mask
    else:
        s = s if past is None else past.start + t
        ahead = arange(s, like)[None, :] - (arange(t, like)[:, None] + (s - t))
        near = ahead == ahead
        near = near if right is None else near & (ahead <= right)
        near = near if left is None else near & (ahead >= -left)
    return near if mask is None else near & mask


class Sight:
    """Who sees whom, before anybody asks for it as an array.

    Most layers only want to know which keys no query sees and which queries see no key. Without a mask two numbers say
    it, with a mask of the keys alone one count along them.
    """

    def __init__(self, mask: Array | None, band: Band, like: Array) -> None:
        self.mask, self.band, self.like = mask, band, like

    def keys(self) -> Array | None:
        """Which keys some query sees, by the axes of the mask, its queries' axis 1; `s` without one, None for all."""
        first = self.band.first_key()
        near = None if first == 0 else arange(self.band.s, self.like) >= first
        return self.mask if near is None else near if self.mask is None else near & self.mask

    def queries(self) -> Array | None:
        """Which queries see some key, by the axes of the mask, its keys' axis 1; `t 1` without one, None for all."""
        first, t = self.band.first_query(), self.band.t
        if self.mask is None:
            return None if first == 0 else (arange(t, self.like) >= first)[:, None]
        count = cumsum(self.mask, -1)
        count = concatenate([0 * count[..., :1], count], -1)
        at, left, right = arange(t, self.like) + (self.band.s - t), self.band.left, self.band.right
        start = clip(at - (self.band.s if left is None else left), 0, self.band.s)
        stop = clip(at + (self.band.s + t if right is None else right) + 1, 0, self.band.s)
        some = count[..., stop] > count[..., start]
        return some[:, None] if some.ndim == 1 else some.swapaxes(-1, -2)


def sight(
    tape: Tape,
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    past: Any = None,
) -> Any:
    """What `visible` gives; without a tape a `Sight`, where that can stand for it: `seen` and `hide` take both."""
    ordered = past is None or past.start is not None
    s = past.filled if past is not None and ordered else s
    of_keys = mask is None or (mask.shape[-1] == s and (mask.ndim == 1 or mask.shape[-2] == 1))
    if tape is None and ordered and of_keys and s > 0:
        return Sight(mask, Band.of(t, s, causal, window), like)
    return visible(mask, t, s, like=like, causal=causal, window=window, past=past)


def seen(spec: str, allowed: Any) -> Any:
    """Which keys any query sees, by the axes of the keys and broadcastable to them: `seen("bhts->bs", allowed)`;
    None where a `Sight` knows that all are seen.
    """
    source, target = spec.split("->")
    if isinstance(allowed, Sight):
        allowed = allowed.keys() if "s" in target else allowed.queries()
        if allowed is None:
            return None
    allowed = allowed.reshape((1,) * (len(source) - allowed.ndim) + allowed.shape)
    some = np.any(allowed, axis=tuple(i for i, letter in enumerate(source) if letter not in target))
    letters = [letter for letter in source if letter in target]
    some = some.transpose([letters.index(letter) for letter in target if letter in letters])
    return some[tuple(slice(None) if letter in letters else None for letter in target)]


@primitive
def shown(allowed: Array | None, bias: Array | None) -> Array | None:
    """What may be seen when a bias is added: where it is -inf it hides, as a mask does."""
    if bias is None:
        return allowed
    near = bias != -np.inf
    return near if allowed is None else near & allowed


def hide(spec: str, allowed: Any, x: Any) -> Any:
    """Select to 0 the keys that no query sees, `hide("bhts->bshk", allowed, k)`, or the queries that see no key,
    `hide("bhts->bthk", allowed, q)`: nothing they hold can leak, into outputs or gradients.
    """
    some = None if allowed is None else seen(spec, allowed)
    return x if some is None else np.where(some, x, 0.0)
