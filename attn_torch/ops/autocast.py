"""What `torch.autocast` does to products, and how it is kept out."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> str | None:
    """The dtype that `torch.autocast` rounds products of float32 arrays to on the array's device; None without it."""
    if not torch._C._is_any_autocast_enabled():
        return None
    device = x.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays whose products `torch.autocast` does not round."""

    @wraps(function)
    def run(x: Tensor, *rest: Any) -> Any:
        if autocast_dtype(x) is None:
            return function(x, *rest)
        with torch.autocast(x.device.type, enabled=False):
            return function(x, *rest)

    return run
