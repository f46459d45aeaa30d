"""Making a layer by the name of its variant."""

from importlib import import_module
from typing import Any

from attn_np import contract
from attn_np.contract._projections import Projections
from attn_np.weights import draw
from attn_torch.frame.layer import Layer
from attn_torch.ops import Device, DType, check_device, float_dtype_name, from_numpy

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in


def layer_class(variant: str) -> type[Layer[Any]]:
    """The class of a variant in this package.

    Raises:
        ValueError: there is no such variant.
    """
    return getattr(import_module(f"{TREE}.{variant}"), contract.get(variant).Config.class_name)


def build(
    variant: str,
    /,
    *,
    seed: int | None = 0,
    dtype: DType = "float32",
    device: Device = None,
    projections: Projections = "arrays",
    **fields: Any,
) -> Any:
    """A layer in evaluation mode, with weights that are the same bits in every package.

    Two layers of one variant, config and seed have the same weights: give each block of a model a seed of its own, or
    None.

    Args:
        variant: the variant's name, such as "mha".
        seed: integer from 0; draws every parameter. None: from PyTorch's own generator, anew in each call.
        dtype: float64, float32, bfloat16 or float16.
        device: where the parameters live, as the framework says it.
        projections: "modules" makes each projection a `torch.nn.Linear`, `w_q.weight`, for tools that look for these.
        fields: those of the variant's Config: `help` of the layer's `Config` tells them.

    Raises:
        ValueError: an unknown variant, or a value that cannot be right.
        TypeError: an unknown or missing field.
    """
    config, device = contract.config(variant, **fields), check_device(device)
    dtype = float_dtype_name(variant, dtype)
    if seed is None:
        return layer_class(config.variant)(config, device=device, dtype=dtype, projections=projections).eval()
    values = {key: from_numpy(x, device) for key, x in draw(config, seed, dtype).items()}
    return layer_class(config.variant).from_params(config, values, dtype, seed, projections)
