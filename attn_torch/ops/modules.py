"""Projections as modules: `torch.nn.Linear`s that tools find, replace and change, and that a layer calls."""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attn_np.contract._projections import Projection

SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` in the precision of a layer: 16-bit inputs and parameters are widened to float32."""

    def forward(self, input: Tensor) -> Tensor:
        y = widened(linear(widened(input), widened(self.weight)))
        return y if self.bias is None else y + widened(self.bias)


def widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in SIXTEEN_BITS else x


def linear_module(projection: Projection, arrays: dict[str, Tensor]) -> Linear:
    """The module with the weight `arrays[name]`, `d h k`, as `(h k) d`, and the bias, if there is one."""
    weight, sizes = arrays[projection.name], (projection.in_features, projection.out_features)
    module = Linear(*sizes, bias=projection.bias is not None, device="meta", dtype=weight.dtype)  # draws nothing
    module.weight = torch.nn.Parameter(weight.reshape(sizes).T.contiguous())
    if projection.bias is not None:
        module.bias = torch.nn.Parameter(arrays[projection.bias].reshape(-1).clone())
    return module


def linear_arrays(projection: Projection, module: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters by our names, as views of those of the module.

    Raises:
        ValueError: a module that holds something else, such as one with an adapter, that computes something else, or
            whose numbers have a form of their own, such as quantised ones.
    """
    params: Any = dict(module.named_parameters()) | dict(module.named_buffers())
    projection.check_plain([*params], "weight", params["weight"].shape if "weight" in params else (), rows=True)
    if type(module).forward not in (Linear.forward, torch.nn.Linear.forward) or "forward" in vars(module):
        raise projection.not_plain("be a plain Linear", module)
    try:
        weight = params["weight"].T.unflatten(1, projection.outputs).unflatten(0, projection.inputs)
    except NotImplementedError as error:
        raise projection.not_plain("hold plain numbers", params["weight"]) from error
    arrays = {projection.name: weight}
    return arrays if projection.bias is None else arrays | {projection.bias: params["bias"].view(projection.outputs)}


def read_other_form(projections: tuple[Projection, ...], in_modules: bool, state: dict[str, Any], prefix: str) -> None:
    """Give entries of a `state_dict` the names and shapes of modules where they are those of arrays, or the reverse."""
    for projection in projections:
        name, bias = prefix + projection.name, None if projection.bias is None else prefix + projection.bias
        sizes = projection.in_features, projection.out_features
        if in_modules and name in state and state[name].numel() == prod(sizes):
            state[f"{name}.weight"] = state.pop(name).reshape(sizes).T
            if bias in state:
                state[f"{name}.bias"] = state.pop(bias).reshape(-1)
        elif not in_modules and f"{name}.weight" in state and state[f"{name}.weight"].shape == sizes[::-1]:
            state[name] = state.pop(f"{name}.weight").T.reshape(*projection.inputs, *projection.outputs)
            if bias is not None and f"{name}.bias" in state:
                state[bias] = state.pop(f"{name}.bias").reshape(projection.outputs)


def mark(projection: Projection, module: Any, dtype: str | None) -> None:
    """Tell a module which projection it computes, for `call_module`; what cannot be it in this dtype is refused."""
    weight = getattr(module, "weight", None)
    got = str(weight.dtype).removeprefix("torch.") if isinstance(weight, Tensor) and weight.is_floating_point() else ""
    projection.check_module(module, torch.nn.Module, (got, dtype or ""))
    module.projection = projection


def call_module(module: torch.nn.Module, x: Tensor) -> Tensor:
    """The projection of x by a module that a layer has: with the axes of x in one, then those of the output apart.

    Raises:
        TypeError: the module returns no tensor.
        ValueError: it returns another shape or dtype, or no layer knows it.
    """
    projection: Projection | None = getattr(module, "projection", None)
    if projection is None:
        got = f"{type(module).__name__}, which no attribute of a layer was set to"
        raise ValueError(f"linear: expected a module of a layer, got {got}; assign it: layer.w_q = module")
    x = widened(x)
    first = x.shape[: x.ndim - len(projection.inputs)]
    inputs = x if len(projection.inputs) == 1 else x.flatten(-len(projection.inputs))
    if isinstance(module, torch.nn.Linear) and not isinstance(module, Linear) and module.weight.dtype in SIXTEEN_BITS:
        inputs = inputs.to(module.weight.dtype)  # PyTorch's own takes one dtype, and rounds to it
    y = module(inputs)
    if not isinstance(y, Tensor) or y.shape != (*first, projection.out_features) or widened(y).dtype != x.dtype:
        split = hasattr(getattr(module, "weight", None), "device_mesh")
        fix = "keep all features: ColwiseParallel(use_local_output=False)" if split else ""
        projection.check_output(y, Tensor, first, (name(y), name(x)), fix)
    return widened(y).unflatten(-1, projection.outputs)


def name(x: Any) -> str:
    """The name of a tensor's dtype as it is after widening."""
    return str(widened(x).dtype).removeprefix("torch.") if isinstance(x, Tensor) else ""
