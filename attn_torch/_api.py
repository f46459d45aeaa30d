"""What the package offers by name: build and trace."""

from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import torch

from attn_np import contract
from attn_np.contract import check_dtype
from attn_np.weights import draw
from attn_torch._core import Layer, Output

__all__ = ["build", "layer_class", "trace"]


def layer_class(variant: str) -> type[Layer[Any]]:
    """The class of a variant in this tree.

    Raises:
        ValueError: there is no such variant.
    """
    return getattr(import_module(f"attn_torch.{variant}"), contract.get(variant).Config.layer)


def tensor(x: np.ndarray) -> torch.Tensor:
    """A NumPy array as a tensor of its own, bit by bit: bfloat16 travels as its bits."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def build(
    variant: str,
    /,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: torch.device | str | None = None,
    **config: Any,
) -> Any:
    """A layer in evaluation mode, with weights that are the same bits in every tree.

    Args:
        variant: the variant's name, such as "mha".
        seed: integer from 0; draws every parameter.
        dtype: float64, float32, bfloat16 or float16.
        device: where the parameters live.
        config: the fields of the variant's Config.

    Raises:
        ValueError: an unknown variant, or a value that cannot be right.
        TypeError: an unknown or missing field.
    """
    fields = contract.config(variant, **config)
    name = check_dtype(variant, dtype)
    values = {key: tensor(x) for key, x in draw(fields, seed, name).items()}
    return layer_class(variant)(fields, device=device, dtype=name, _values=values).eval()


def trace(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer and return its output and its tape: every named intermediate, in the order they were computed.

    16-bit layers compute in float32 and the tape holds what was computed, unrounded.
    """
    tape: dict[str, Any] = {}
    return layer(*inputs, tape=tape, **options), tape
