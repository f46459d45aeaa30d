"""What the contract's checks see of arrays: their shapes and the names of their dtypes."""

from typing import Any

import jax
import numpy as np

from attn_jax.ops import Array, dtype_name, float_dtype_name


def checked_specs(who: str, **arrays: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every array, for the contract's checks; refuses what is no array. None for None."""
    specs: dict[str, Any] = dict.fromkeys(arrays)
    for name, x in arrays.items():
        if x is not None:
            specs[name] = spec_of(who, name, x)
    return specs


def refuse_silent_float32(variant: str, *arrays: Array | None) -> None:
    """Refuse NumPy's float64 where JAX would silently make float32 of it, in calls of layers without parameters.

    Raises:
        ValueError: naming JAX's switch.
    """
    if any(isinstance(x, np.ndarray) and dtype_name(x) == "float64" for x in arrays):
        float_dtype_name(variant, "float64")


def spec_of(who: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{who}: expected {name} as a jax.Array, got {type(x).__name__}; convert it")
    return tuple(x.shape), dtype_name(x)
