"""Layers of PyTorch on a device of their own, which is no CPU and no GPU, for `test_own_device_torch`.

    python -m parity_tests.tests.transforms.own_device mha decoder

Nothing is computed there: tensors are PyTorch's fake ones, which know their shapes, dtypes and device, and refuse an
operation on tensors of two devices. Each example that fails is printed, forward or backward.
"""

import os
import sys
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import attn_torch
from attn_np import contract
from parity_tests.tests.inputs import random_inputs

DTYPES = {"f": torch.float32, "b": torch.bool, "i": torch.int64}


def fails(config: Any) -> str:
    """What is wrong with a call with every argument and its gradients; "" for nothing."""
    shapes = {name: (x.shape, DTYPES[x.dtype.kind]) for name, x in random_inputs(config, "full").items()}
    try:
        with FakeTensorMode():
            layer = getattr(attn_torch, config.class_name)(config, device="own", dtype=torch.float32).eval()
            inputs = {name: torch.empty(shape, dtype=dtype, device="own") for name, (shape, dtype) in shapes.items()}
            leaves = [x.requires_grad_() for x in inputs.values() if x.is_floating_point()]
            found = layer(**inputs)
            outputs = [x for x in (found if isinstance(found, tuple) else (found,)) if x is not None]
            torch.stack([x.sum() for x in outputs]).sum().backward()
            made = [*outputs, *(x.grad for x in (*leaves, *layer.parameters()) if x.grad is not None)]
            elsewhere = {x.device.type for x in made} - {"own"}
            return f"results on {', '.join(elsewhere)}" if elsewhere else ""
    except (RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend("own")
    fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # of smaller constants PyTorch would compute the values, on this device, too
    for variant in sys.argv[1:]:
        for example, config in contract.examples(variant).items():
            if said := fails(config):
                print(f"{variant}/{example}: {said}")
    sys.stdout.flush()
    os._exit(0)  # PyTorch's thread of gradients for such a device may abort the process at its end
