"""What is known while PyTorch traces a program: of values, and of lengths that may vary."""

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

# The dispatch modes that trace operations: `FakeTensorMode`, `make_fx`.
TRACING_MODES = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY


def concrete(x: Tensor) -> bool:
    """Whether the values are known; under jit, compile, vmap and other tracing they are not, nor in a graph of CUDA."""
    if torch.compiler.is_compiling() or x.is_meta or (type(x) is not Tensor and isinstance(x, FakeTensor)):
        return False
    if torch._C._len_torch_dispatch_stack() and any(torch._C._get_dispatch_mode(mode) for mode in TRACING_MODES):
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def lengths_are_numbers() -> bool:
    """Whether lengths have values that can be written down; in a program that PyTorch compiles they may be symbols."""
    return not torch.compiler.is_compiling()


def is_longer(t: int, n: int) -> bool:
    """Whether a length is above `n`; in a program that is exported for any length, whether every such length is."""
    return statically_known_true(t > n) if torch.compiler.is_exporting() else t > n
