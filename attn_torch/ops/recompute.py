"""Functions whose intermediates are recomputed in the backward pass; between the passes only the arguments are kept.

PyTorch's own checkpoint keeps the graph of what it recomputes, without its arrays: 45 kB more for each time step of
`seq2seq`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

ARRAY = object()


def remat(function: Callable[..., Any], batch_at_once: int | None = None) -> Callable[..., Any]:
    """The function with its intermediates recomputed in the backward pass instead of kept.

    Gradients reach its arguments alone: tuples, lists and dictionaries of arrays and other values. PyTorch's compiler
    and transforms do not know such a function, and get it as it is.

    Args:
        batch_at_once: how many entries of axis 0 are computed at a time, forward and backward, by a function that
            treats each by itself; None for all.
    """

    last_function: Any = None  # what many calls have in common is kept once

    def call(*arguments: Any) -> Any:
        nonlocal last_function
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or forward_ad._current_level >= 0:
            return function(*arguments)
        transforms = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        tracers = torch._C._len_torch_dispatch_stack() > 0
        if transforms or tracers:
            return function(*arguments)
        if batch_at_once is not None and arguments[0].shape[0] > batch_at_once:
            parts = zip(*(x.split(batch_at_once) for x in arguments), strict=True)
            return tuple(torch.cat(results) for results in zip(*(call(*part) for part in parts), strict=True))
        leaves, structure = tree_flatten(arguments)
        arrays = [x for x in leaves if isinstance(x, Tensor)]
        others = [ARRAY if isinstance(x, Tensor) else x for x in leaves]
        if last_function is None or (last_function.others, last_function.structure) != (others, structure):
            last_function = FlatFunction(function, others, structure)
        results = Recomputed.apply(last_function, *arrays)
        return tree_unflatten(list(results), last_function.structure_of_results)

    return call


@dataclass
class FlatFunction:
    """A function of the arrays among its arguments, to the list of its results.

    Attributes:
        others: the other arguments, with `ARRAY` for each array.
        structure, structure_of_results: the tuples, lists and dictionaries that the arguments and the results stand in.
    """

    function: Callable[..., Any]
    others: list[Any]
    structure: TreeSpec
    structure_of_results: TreeSpec | None = None

    def __call__(self, *arrays: Tensor) -> tuple[Any, ...]:
        rest = iter(arrays)
        leaves = [next(rest) if x is ARRAY else x for x in self.others]
        results, self.structure_of_results = tree_flatten(self.function(*tree_unflatten(leaves, self.structure)))
        return tuple(results)


class Recomputed(Function):
    """The results of a function of arrays."""

    @staticmethod
    def forward(ctx, function, *arrays):
        ctx.save_for_backward(*arrays)
        ctx.set_materialize_grads(False)
        ctx.function, ctx.autocast = function, autocast_of(arrays)
        with ctx.autocast():
            return function(*arrays)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        needed, create_graph = ctx.needs_input_grad[1:], torch.is_grad_enabled()

        def leaf(x: Tensor) -> Tensor:
            # One argument may have been computed from another, so each gets a node of its own. Without a second
            # derivative the node is cut off from the graph before it: PyTorch would walk all of that in every step.
            return x.view_as(x) if create_graph else x.detach().requires_grad_()

        with torch.enable_grad(), ctx.autocast():
            arrays = [leaf(x) if need else x.detach() for x, need in zip(ctx.saved_tensors, needed, strict=True)]
            results = ctx.function(*arrays)
        used = [(y, dy) for y, dy in zip(results, grad_outputs, strict=True) if dy is not None and y.requires_grad]
        wanted = [x for x, need in zip(arrays, needed, strict=True) if need]
        grads: Any = [None] * len(wanted)
        if used:
            outputs, cotangents = zip(*used, strict=True)
            options: Any = {"create_graph": create_graph, "allow_unused": True}
            grads = torch.autograd.grad(outputs, wanted, cotangents, **options)
        rest = iter(grads)
        return None, *(next(rest) if need else None for need in needed)


def autocast_of(arrays: tuple[Tensor, ...]) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which products round as they do now."""
    device = arrays[0].device.type
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)
