"""What the contract's checks see of arrays: their shapes and the names of their dtypes."""

from typing import Any

from torch import Tensor

from attn_torch.kernels.context_parallel import refuse_context_parallel
from attn_torch.ops import Array, autocast_dtype, dtype_name


def checked_specs(who: str, **arrays: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every array, for the contract's checks; refuses what is no array. None for None."""
    refuse_context_parallel(who)
    specs: dict[str, Any] = dict.fromkeys(arrays)
    for name, x in arrays.items():
        if x is not None:
            specs[name] = spec_of(who, name, x)
    return specs


def spec_of(who: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise TypeError(f"{who}: expected {name} as a torch.Tensor, got {type(x).__name__}; convert it")
    dtype = dtype_name(x)
    # Autocast mixes float32 and a dtype of its own.
    return tuple(x.shape), "float32" if dtype != "float32" and dtype == autocast_dtype(x) else dtype
