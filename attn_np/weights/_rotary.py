"""Columns of queries and keys in the order that a layout of rotary positions pairs them in."""

from typing import Any

import numpy as np

from attn_np.contract._rotary import LAYOUTS


def rotary_layout(w: np.ndarray, source: str, target: str, rotary_dim: int | None = None) -> np.ndarray:
    """`w_q`, `w_k`, their biases or norms' weights, made for one layout, in the order of the other.

    With both exchanged the layer computes the same: scores do not know the order of a head's numbers.

    Args:
        w: its last axis is a head's width.
        source: the layout that it was made for, "half" or "interleaved".
        target: the layout that it is wanted for.
        rotary_dim: how many numbers turn, the first ones; all by default.

    Raises:
        ValueError: an unknown layout, or a rotary_dim that does not fit.
    """
    width: Any = w.shape[-1] if rotary_dim is None else rotary_dim
    for name, layout in (("source", source), ("target", target)):
        if layout not in LAYOUTS:
            choices = ", ".join(LAYOUTS)
            raise ValueError(f"rotary_layout: expected {name} to be one of {choices}, got {layout!r}; name a layout")
    if width % 2 or not 0 < width <= w.shape[-1]:
        most = w.shape[-1]
        raise ValueError(f"rotary_layout: expected rotary_dim to be even, from 2 to {most}, got {width}; set it")
    if source == target:
        return w.copy()
    pairs = np.arange(width).reshape((2, width // 2) if source == "half" else (width // 2, 2))
    return np.concatenate([w[..., pairs.T.reshape(-1)], w[..., width:]], axis=-1)
