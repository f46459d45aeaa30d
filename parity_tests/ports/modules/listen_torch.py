"""PyTorch: forward hooks on every submodule, and float64 wherever code asks for a smaller type."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from parity_tests.bounds.error_array import widened
from parity_tests.judge.candidates import from_torch, to_torch
from parity_tests.ports.modules.in_float64 import InFloat64
from parity_tests.ports.modules.known import attention_of
from parity_tests.ports.modules.recordings import Arrays, Call, Run, call_of, flat, mapped
from parity_tests.ports.modules.sides import (
    Caller,
    Mode,
    Side,
    Turns,
    cotangent,
    function_name,
    gradients_of_whole,
    moved,
    named,
    parameters_of,
    place_names,
    renamed_place,
    renamed_places,
    rounded,
    with_whole,
)


def torch_side(module: torch.nn.Module, call: Caller) -> Side:
    """A module: every run is of a copy with the weights given."""
    state = {name: x for name, x in module.state_dict().items() if x.is_floating_point()}
    if any(x.is_meta for x in (*state.values(), *module.buffers())):
        raise ValueError("compare_modules: expected weights, got a module on the device meta; load them first")
    buffers = {n: from_torch(x) for n, x in module.named_buffers() if n not in state and x.is_floating_point()}
    constants = {name: x for name, x in buffers.items() if rounded(x).any()}
    params = [x.dtype for x in module.parameters() if x.is_floating_point()]
    where: Any = next((x.device for x in state.values()), "cpu")

    def run(args: Any, kwargs: Any, weights: Arrays, mode: Mode) -> Run:
        copy, dtype = copied_module(module), getattr(torch, mode.dtype)
        if mode.exact or dtype_of_side == "float64":
            copy = copy.to(dtype)
        held = dict(copy.named_buffers())
        if mode.moved:
            for name, x in constants.items():
                held[name].copy_(to_torch(moved(x), where).reshape(x.shape))
        # Tied weights: the first name of an array decides.
        own: dict[int, Any] = {}
        with torch.no_grad():
            for name, x in copy.state_dict(keep_vars=True).items():
                if name in weights and id(x) not in own:
                    own[id(x)] = x.copy_(to_torch(weights[name], where).reshape(x.shape))
        for x in copy.parameters():
            x.requires_grad_(x.is_floating_point())
        result = Run()
        with ExitStack() as stack:
            if mode.exact:
                stack.enter_context(InFloat64())
            calls, roots = stack.enter_context(listening(copy, Turns(mode), mode.gradients))
            params = dict(copy.named_parameters())
            outputs = project(copy, call, args, kwargs, params, mode, where, result, roots)
        inputs = {name: widened(x) for name, x in named(args, kwargs).items()}
        result.calls = with_whole(calls, type(module).__name__, inputs, outputs)
        gradients_of_whole(result, outputs, mode.tokens)
        return result

    dtype_of_side = str(params[0]).rpartition(".")[2] if params else ""
    return Side(
        f"torch {type(module).__name__}",
        dtype_of_side,
        {name: from_torch(x) for name, x in state.items()},
        tuple(constants),
        run,
        # Linear layers of GPT-2 in transformers.
        [f"{name}.weight" for name, x in module.named_modules() if type(x).__name__ == "Conv1D"],
        lambda weights: attention_of(dict(module.named_modules()), weights),
    )


def torch_function_side(function: Any, call: Caller, weights: bool) -> Side:
    """A function of tensors, and of a dictionary of weights before them."""

    def run(args: Any, kwargs: Any, params: Arrays, mode: Mode) -> Run:
        dtype, result = getattr(torch, mode.dtype), Run()
        own = {name: to_torch(widened(x), "cpu").to(dtype).requires_grad_() for name, x in params.items()}
        own = own if weights else {}

        def called(*a: Any, **k: Any) -> Any:
            first = (own,) if weights else ()
            return call(function, *first, *a, **k) if call else function(*first, *a, **k)

        with ExitStack() as stack:
            if mode.exact:
                stack.enter_context(InFloat64())
            outputs = project(called, None, args, kwargs, own, mode, "cpu", result)
        inputs = {name: widened(x) for name, x in named(args, kwargs).items()}
        result.calls = with_whole([], "function", inputs, outputs)
        gradients_of_whole(result, outputs, mode.tokens)
        return result

    return Side(f"torch {function_name(function)}", "", {}, (), run)


@torch.enable_grad()
def project(
    function: Any,
    call: Caller,
    args: Any,
    kwargs: Any,
    own: dict[str, Any],
    mode: Mode,
    where: Any,
    result: Run,
    roots: Sequence[torch.Tensor] = (),
) -> Arrays:
    """Call a function; put the gradients of a random projection of its first output into the result.

    Args:
        roots: tensors from which gradients are taken beside inputs and weights, so that hooks before them are called.
    """
    leaves: dict[str, Any] = {}

    def tensor(name: str, x: Any) -> Any:
        x = to_torch(widened(x), where).reshape(x.shape)
        if x.is_floating_point():
            x = leaves[name] = x.to(getattr(torch, mode.dtype)).requires_grad_()
            return x.clone()  # a module may write into what it gets
        return x

    args, kwargs = mapped(args, tensor), mapped(kwargs, tensor)
    output = call(function, *args, **kwargs) if call else function(*args, **kwargs)
    outputs = dict(flat(output))
    first = next((x for x in outputs.values() if x.is_floating_point()), None)
    if first is not None and first.requires_grad and mode.gradients:
        targets = {**{("input", n): x for n, x in leaves.items()}, **{("weight", n): x for n, x in own.items()}}
        dy = to_torch(cotangent(tuple(first.shape), mode.tokens), where).to(first.dtype)
        grads = torch.autograd.grad([first], [*targets.values(), *roots], [dy], allow_unused=True)
        for ((kind, name), x), g in zip(targets.items(), grads, strict=False):
            g = from_torch(torch.zeros_like(x) if g is None else g)
            if kind == "input":
                result.input_grads[name] = widened(g)
            else:  # as large as the model, so in its own type
                result.weight_grads[name] = g
    return {name: widened(from_torch(x)) for name, x in outputs.items()}


@contextmanager
def listening(
    module: torch.nn.Module, turns: Turns, gradients: bool
) -> Iterator[tuple[list[Call], list[torch.Tensor]]]:
    """The calls of a module and all its submodules, in the order in which they end, and their gradients once taken.

    Beside them the inputs of calls that depend on no weight, from which gradients are to be taken as well.
    """
    calls: list[Call] = []
    roots: list[torch.Tensor] = []
    running: list[Call] = []
    handles = []

    def arrays(tree: Any) -> Arrays:
        # A copy: what is written into a tensor later is not seen here.
        return {n: widened(from_torch(x)).copy() for n, x in flat(tree) if isinstance(x, torch.Tensor)}

    def keep(x: torch.Tensor, part: Arrays, name: str) -> None:
        if x.requires_grad:
            x.register_hook(lambda g: part.__setitem__(name, widened(from_torch(g)).copy()))

    for name, sub in module.named_modules():
        parameters = parameters_of(sub.forward)

        def before(sub: Any, args: Any, kwargs: Any, name: str = name, parameters: tuple[str, ...] = parameters) -> Any:
            names = place_names(parameters, args)
            call = call_of(name, sub, renamed_places(arrays(args), names) | arrays(kwargs), {}, parameters)
            running.append(call)
            if not gradients:
                return None
            seen: dict[int, torch.Tensor] = {}

            def entered(key: str, x: Any) -> Any:
                """The same tensor, whose gradient is what comes through this call alone."""
                if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                    return x
                if id(x) not in seen:
                    if not x.requires_grad:
                        roots.append(x.detach().requires_grad_())
                    seen[id(x)] = x.view_as(x) if x.requires_grad else roots[-1].clone()
                    keep(seen[id(x)], call.input_grads, key)
                return seen[id(x)]

            given = mapped(args, lambda key, x: entered(renamed_place(key, names), x))
            return given, mapped(kwargs, entered)

        def after(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
            call = running.pop()
            call.outputs = arrays(output)
            calls.append(call)
            if gradients:
                for key, x in flat(output):
                    if isinstance(x, torch.Tensor) and x.is_floating_point():
                        keep(x, call.output_grads, key)
            return turns.settle(call.name, output, lambda value, x: to_torch(value, x.device).to(x.dtype))

        handles += [
            sub.register_forward_pre_hook(before, with_kwargs=True),
            sub.register_forward_hook(after, with_kwargs=True),
        ]
    try:
        yield calls, roots
    finally:
        for handle in handles:
            handle.remove()


def copied_module(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module, with copies of the functions that were put in the place of its methods.

    Python copies no function, and one that was set as `module.forward` finds the original module in its closure or
    among its globals. The copy of the function finds the copy of the module.
    """
    memo: dict[int, Any] = {}
    copy = deepcopy(module, memo)
    originals = {id(sub): sub for sub in module.modules()}

    def moved_to(x: Any, among: Any) -> Any:
        if id(x) in originals:
            return memo[id(x)]
        if isinstance(x, MethodType) and id(x.__self__) in originals:
            return MethodType(x.__func__, memo[id(x.__self__)])
        # Of other functions, those of the same file: no library's finds this module.
        return bound(x) if isinstance(x, FunctionType) and x.__globals__ is among else x

    def bound(function: FunctionType) -> FunctionType:
        if id(function) in memo:
            return memo[id(function)]
        memo[id(function)] = function  # one that finds itself
        among = function.__globals__
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        known = {name: among[name] for name in names_in(function.__code__) if name in among}
        cells = [moved_to(x, among) for x in held]
        found = {name: y for name, x in known.items() if (y := moved_to(x, among)) is not x}
        if found or any(x is not y for x, y in zip(held, cells, strict=True)):
            closure = tuple(map(CellType, cells)) or None
            made = FunctionType(function.__code__, among | found, function.__name__, function.__defaults__, closure)
            made.__kwdefaults__ = function.__kwdefaults__
            memo[id(function)] = made
        return memo[id(function)]

    for sub in copy.modules():
        for name, x in list(vars(sub).items()):
            if isinstance(x, FunctionType):
                setattr(sub, name, bound(x))
    return copy


def names_in(code: CodeType) -> Iterator[str]:
    """The names that code and the functions made in it look up."""
    yield from code.co_names
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from names_in(x)
