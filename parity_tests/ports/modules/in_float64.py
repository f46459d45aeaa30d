"""PyTorch with float64 in place of every smaller type, for models that turn to these whatever their weights are in."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SMALL = (torch.float32, torch.float16, torch.bfloat16)
SHORT = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}


class InFloat64(TorchFunctionMode):
    """PyTorch with float64 wherever code asks for a smaller type.

    Models turn to float32 for norms, positions and softmax, and Falcon to bfloat16 for its slopes, whatever type their
    weights have. A comparison of meaning leaves these roundings out, and in float64 an error has nowhere to hide.
    """

    def __enter__(self) -> Any:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self.before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(x: Any) -> Any:
            return torch.float64 if isinstance(x, torch.dtype) and x in SMALL else x

        func = torch.Tensor.double if func in SHORT else func
        return func(*map(wide, args), **{name: wide(x) for name, x in (kwargs or {}).items()})
