"""Relative positions: encodings and buckets of distances."""

from typing import Any

from attn_torch._ops import constant


@constant
def sinusoids(xp: Any, low: int, high: int, width: int, base: float, dtype: str) -> Any:
    """Encodings of the distances low .. high - 1: sines, then cosines, made in float64 and rounded once."""
    rates = base ** -(xp.arange(0, width, 2, dtype=xp.float64) / width)
    angles = xp.arange(low, high, dtype=xp.float64)[:, None] * rates
    return xp.asarray(xp.concatenate([xp.sin(angles), xp.cos(angles)], axis=1), dtype=getattr(xp, dtype))


@constant
def bucketed(xp: Any, config: Any) -> Any:
    """The bucket of every distance from -max_distance to max_distance."""
    return xp.asarray(config.signed_buckets(), dtype=xp.int32)
