"""The order of query and key columns in the two layouts of rotary positions."""

from typing import Any

import numpy as np

from attn_np.contract._rotary import LAYOUTS


def rotary_layout(w: np.ndarray, source: str, target: str, rotary_dim: int | None = None) -> np.ndarray:
    """Reorder `w_q`, `w_k`, their biases or norm weights, from one rotary layout to the other.

    With queries and keys reordered alike the layer computes the same: a score is a sum over a head's numbers.

    Args:
        w: its last axis is a head's width.
        source: the layout of `w`, "half" or "interleaved".
        target: the layout of the result.
        rotary_dim: how many numbers of a head are rotated, the first ones; all by default.

    Raises:
        ValueError: an unknown layout, or a rotary_dim that does not fit.
    """
    head_dim = w.shape[-1]
    width: Any = head_dim if rotary_dim is None else rotary_dim
    for name, layout in (("source", source), ("target", target)):
        if layout not in LAYOUTS:
            choices = ", ".join(LAYOUTS)
            raise ValueError(f"rotary_layout: expected {name} to be one of {choices}, got {layout!r}; name a layout")
    if width % 2 or not 0 < width <= head_dim:
        raise ValueError(f"rotary_layout: expected rotary_dim to be even, from 2 to {head_dim}, got {width}; set it")
    if source == target:
        return w.copy()
    pairs = np.arange(width).reshape((2, width // 2) if source == "half" else (width // 2, 2))
    return np.concatenate([w[..., pairs.T.reshape(-1)], w[..., width:]], axis=-1)
