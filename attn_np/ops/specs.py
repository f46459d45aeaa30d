"""What the contract's checks see of arrays: their shapes and the names of their dtypes."""

from typing import Any

import numpy as np

from attn_np.ops import Array, dtype_name


def checked_specs(who: str, **arrays: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every array, for the contract's checks; refuses what is no array. None for None."""
    specs: dict[str, Any] = dict.fromkeys(arrays)
    for name, x in arrays.items():
        if x is not None:
            specs[name] = spec_of(who, name, x)
    return specs


def spec_of(who: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not hasattr(x, "__array_function__"):
        raise TypeError(f"{who}: expected {name} as a NumPy array, got {type(x).__name__}; convert it")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{who}: expected {name} as a NumPy array, got {type(x).__name__}; give its data, and say by mask= "
            "what may be attended to"
        )
    return tuple(x.shape), dtype_name(x)
