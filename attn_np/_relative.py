"""Relative positions: encodings and buckets of distances."""

from typing import Any

import numpy as np

from attn_np._ops import constant


@constant
def sinusoids(low: int, high: int, width: int, base: float, dtype: str) -> np.ndarray:
    """Encodings of the distances low .. high - 1: sines, then cosines.

    Computed in float64 by NumPy and rounded once, so that they are the same bits in every tree.
    """
    angles = np.arange(low, high, dtype=np.float64)[:, None] * base ** -(np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(dtype)


@constant
def bucketed(config: Any) -> np.ndarray:
    """The bucket of every distance from -max_distance to max_distance."""
    return np.array(config.signed_buckets(), np.int32)
