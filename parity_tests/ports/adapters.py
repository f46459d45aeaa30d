"""Bring your own: a torch module, a Flax module or a function, made into a candidate that the judge takes.

Names are mapped, never guessed. Weights are read from the candidate and stay as they are.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import Parameter, signature
from itertools import count
from typing import Any

import numpy as np

from attn_np import contract
from attn_np._ops import DTYPES
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts._base import Step, Table, steps
from attn_np.weights.layouts._rearrange import parse, rearrange, solve
from parity_tests.judge.candidates import Candidate, Outcome, accelerators, collect, from_torch, scoped, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.cases import given as given_in

Weights = str | Mapping[Any, Any] | None
Named = str | tuple[str, str]


@dataclass(frozen=True)
class Names:
    """How a candidate's names and axes map to ours.

    Attributes:
        weights: a layout's name such as "bert", or our parameter to their name or (their name, "their axes -> ours"),
            as in `{"w_q": ("q_proj.weight", "(h k) d -> d h k")}`; several of ours may come from one of theirs:
            `{("w_q", "w_k", "w_v"): ("qkv.weight", "(p h k) d -> p d h k")}`.
        arguments: our argument to their keyword or (their keyword, "our axes -> theirs"). By default the arguments of
            the same name, and the first one by position.
        outputs: what is returned, in order: "y", "out1" (the weights), or (name, "their axes -> ours"); None for what
            is not compared.
        taps: a pattern that finds a submodule's or an intermediate's name to the name on our tape, or (that name,
            "their axes -> ours").
        call: called as `call(candidate, **arguments)` with our names, in place of the candidate itself.
    """

    weights: Weights = None
    arguments: Mapping[str, Named] | None = None
    outputs: tuple[Named | None, ...] = ("y",)
    taps: Mapping[str, Named] = field(default_factory=dict)
    call: Callable[..., Any] | None = None


def framework_of(candidate: Any) -> str:
    """The framework of a module by its class; "numpy" for anything else that can be called."""
    if isinstance(candidate, type):
        raise TypeError(f"assert_parity: expected a module, got the class {candidate.__name__}; build one of it first")
    for base in type(candidate).__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "Module" and base.__module__.startswith("flax.linen"):
            raise TypeError(
                f"assert_parity: expected a Flax NNX module, got {type(candidate).__name__} of flax.linen; wrap its "
                f'apply in a function of the weights and our arguments, and set framework="jax"'
            )
        if base.__name__ == "Module" and root in ("torch", "flax"):
            return {"torch": "torch", "flax": "jax"}[root]
    if not callable(candidate):
        raise TypeError(
            f"assert_parity: expected a torch module, a Flax module or a function, got {type(candidate).__name__}; "
            f"wrap what computes attention in a function of its arguments"
        )
    return "numpy"


class MissingDeviceError(ValueError):
    """The machine does not have the device that was asked for."""


# Names and axes -------------------------------------------------------------------------------------------------------


def pair(named: Named) -> tuple[str, str | None]:
    return (named, None) if isinstance(named, str) else named


def table_of(weights: Weights, config: Config) -> Table:
    """The table of a layout, or one made of a name map."""
    if isinstance(weights, str):
        layout = layouts.get(weights)
        chosen = layout.table_for(config)
        if chosen is None:
            known = ", ".join(sorted({layout.variant_of(table) for table in layout.tables}))
            raise ValueError(
                f"assert_parity: expected a layout that holds {config.variant}, got {weights!r} with {known}; "
                f"give weights= as a map of names"
            )
        return layout.tables[chosen]
    params = config.params()
    rules: dict[Any, Any] = {}
    for ours, theirs in (weights or {name: name for name in params}).items():
        names = (ours,) if isinstance(ours, str) else tuple(ours)
        for name in names:
            if name not in params:
                raise ValueError(
                    f"assert_parity: expected parameters of {config.variant} in weights=, got {name!r}; "
                    f"{contract.nearest(name, tuple(params))}"
                )
        key, pattern = pair(theirs)
        same = next(params[name].axes for name in names)
        pattern = pattern or f"{same} -> {same}"
        right = [letter for axis in parse(pattern)[1] for letter in axis]
        if right[len(names) > 1 :] != same.split():
            what = "a first axis for the parameters, then " if len(names) > 1 else ""
            raise ValueError(
                f"assert_parity: expected a pattern in weights= that ends in {what}{same!r}, got {pattern!r}; "
                f"the right side has the axes of {', '.join(names)}"
            )
        rules[ours] = (key, pattern)
    given_names = {name for ours in rules for name in ((ours,) if isinstance(ours, str) else ours)}
    absent = [name for name in params if name not in given_names]
    if absent:
        raise ValueError(
            f"assert_parity: expected every parameter of {config.variant} in weights=, got none for "
            f"{', '.join(absent)}; map each, or leave it out of the config, as biases by its fields"
        )
    return Table(rules=rules)


def read_weights(weights: Weights, config: Config, held: Mapping[str, np.ndarray]) -> tuple[Any, list[Step]]:
    """Our parameters from a candidate's own, and the steps that lead from its names to ours."""
    if not config.params():
        return {}, []
    moves, params = steps(table_of(weights, config), config), {}
    for step in moves:
        for key in step.keys:
            if key not in held:
                known = contract.nearest(key, tuple(held)) if held else "it has no parameters; buffers are not read."
                raise ValueError(
                    f"assert_parity: expected a parameter {key!r} in the candidate, got none of this name; "
                    f"{known.rstrip('.')}; map it with weights="
                )
            if held[key].shape != step.key_shape():
                raise ValueError(
                    f"assert_parity: expected {key!r} of shape {step.key_shape()} ({step.key_axes()}), "
                    f"got {held[key].shape}; check the pattern in weights= and the config"
                )
        params |= step.ours(held)
    return params, moves


def letters_of(case: Case, drawn: Drawn) -> dict[str, int]:
    """The size of every axis letter in a call."""
    sizes = dict(case.config.sizes())
    for name, arg in case.config.arguments().items():
        if name in drawn.inputs and arg.kind in ("array", "tokens"):
            sizes |= dict(zip(arg.axes.split(), drawn.inputs[name].shape, strict=True))
    if "s" not in sizes and "t" in sizes:
        sizes["s"] = sizes["t"]
    return sizes


def arranged(x: Any, pattern: str | None, sizes: Mapping[str, int], move: Callable[..., Any] = rearrange) -> Any:
    return x if pattern is None else move(x, pattern, sizes)


def axes_moved(x: Any, pattern: str, sizes: Mapping[str, int]) -> Any:
    """`rearrange` for an array of any framework, so that gradients pass through it."""
    left, right = parse(pattern)
    known = dict(sizes) | solve(left, tuple(x.shape), sizes)
    source = [letter for axis in left for letter in axis]
    target = [letter for axis in right for letter in axis]
    x = x.reshape([known[letter] for letter in source])
    x = (x.permute if hasattr(x, "permute") else x.transpose)([source.index(letter) for letter in target])
    shape: list[int] = []
    for axis in right:
        size = 1
        for letter in axis:
            size *= known[letter]
        shape.append(size)
    return x.reshape(shape)


def accepted(candidate: Any, config: Config, names: Names) -> dict[str, Named]:
    """Our arguments that a candidate takes, with the keyword it has for each; "" for the first, by position.

    Raises:
        ValueError: a name in `arguments` that the variant does not have.
    """
    if names.arguments is not None:
        unknown = [name for name in names.arguments if name not in config.arguments()]
        if unknown:
            raise ValueError(
                f"assert_parity: expected arguments of {config.variant} in arguments=, got {unknown[0]!r}; "
                f"{contract.nearest(unknown[0], tuple(config.arguments()))}"
            )
        return filled(dict(names.arguments), config)
    found = parameters(candidate, config, names)
    known = {p.name for p in found if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    every = any(p.kind is Parameter.VAR_KEYWORD for p in found)
    taken: dict[str, Named] = {name: name for name in config.arguments() if every or name in known}
    first = next(iter(config.arguments()))
    return filled(taken if first in taken else {first: "", **taken}, config)


def filled(taken: dict[str, Named], config: Config) -> dict[str, Named]:
    """The same arguments, where they are enough for a call."""
    absent = [name for name in given_in(config, "plain") if name not in taken]
    if absent:
        raise ValueError(
            f"assert_parity: expected every argument that {config.variant} cannot do without, got none for "
            f"{', '.join(absent)}; map each with arguments=, or give call="
        )
    return taken


def parameters(candidate: Any, config: Config, names: Names) -> list[Parameter]:
    """The parameters of what is called, behind the candidate itself or the weights."""
    function = names.call or getattr(candidate, "forward", candidate)
    try:
        found = list(signature(function).parameters.values())
    except ValueError:
        raise TypeError(
            f"assert_parity: expected a candidate with a signature, got {function!r}; wrap it in a function of our "
            f"arguments, or map them with arguments="
        ) from None
    return found[1:] if names.call is not None or takes_params(candidate, config) else found


def needed(candidate: Any, config: Config, names: Names, taken: Mapping[str, Named]) -> tuple[str, ...]:
    """Our arguments that a candidate cannot do without: those without a default in its signature."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = parameters(candidate, config, names)
    asked = {p.name for p in found if p.kind in kinds and p.default is Parameter.empty}
    return tuple(ours for ours, theirs in taken.items() if (ours if names.call else pair(theirs)[0]) in asked)


def takes_params(candidate: Any, config: Config) -> bool:
    """A function of a variant with weights gets them as its first argument; a module holds its own."""
    return bool(config.params()) and framework_of(candidate) == "numpy"


def invoke(candidate: Any, given: Mapping[str, Any], taken: Mapping[str, Named], names: Names, sizes: Any) -> Any:
    """Call a candidate with our arguments under its names."""
    positional, keywords = [], {}
    for name, x in given.items():
        key, pattern = (name, None) if names.call is not None else pair(taken[name])
        x = arranged(x, pattern, sizes, axes_moved)
        if key:
            keywords[key] = x
        else:
            positional.append(x)
    if names.call is not None:
        positional, candidate = [candidate], names.call
    try:
        return candidate(*positional, **keywords)
    except Exception as error:
        got = ", ".join(f"{name} {type(x).__module__.partition('.')[0]} {tuple(x.shape)}" for name, x in given.items())
        error.add_note(
            f"assert_parity: the candidate raised this when it was called with {got}; arguments= and call= say how it "
            f"is called, framework= whose arrays a function gets"
        )
        raise


def returned(result: Any, names: Names, sizes: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A candidate's result as named outputs and, from a dictionary, named intermediates in their own axes.

    Raises:
        ValueError: an output that `names` lists is not there.
    """
    listed = [named if named is None else pair(named) for named in names.outputs]
    wanted = dict(named for named in listed if named is not None)
    if isinstance(result, Mapping):
        found = {name: x for name, x in result.items() if name in wanted}
        rest = {name: x for name, x in result.items() if name not in wanted}
        tape = dict(tapped(rest, names)) if names.taps else rest
        got = f"a dictionary of {', '.join(map(str, result)) or 'nothing'}"
    else:
        parts = list(result) if isinstance(result, tuple | list) else [result]
        found = {named[0]: x for named, x in zip(listed, parts, strict=False) if named is not None}
        tape, got = {}, ", ".join(type(x).__name__ for x in parts) or "nothing"
    absent = [name for name in wanted if found.get(name) is None]
    if absent:
        raise ValueError(
            f"assert_parity: expected the candidate to return {', '.join(wanted)}, got {got}, so no "
            f"{', '.join(absent)}; outputs= names what it returns in order, call= may return a dictionary of our names"
        )
    return {name: arranged(x, wanted[name], sizes, axes_moved) for name, x in found.items()}, tape


def tapped(values: Mapping[str, Any], names: Names) -> Iterator[tuple[str, Any]]:
    """The intermediates that a tap's pattern finds, under our names, in their own axes.

    Raises:
        ValueError: two of them would get one name.
    """
    places: dict[str, str] = {}
    for pattern, named in names.taps.items():
        ours = pair(named)[0]
        for name, x in values.items():
            if re.fullmatch(pattern, name):
                if ours in places:
                    raise ValueError(
                        f"assert_parity: expected one place for {ours!r} in taps=, got {places[ours]!r} and {name!r}; "
                        f"give a pattern that finds one of them"
                    )
                places[ours] = name
                yield ours, x


def in_our_axes(tape: Mapping[str, Any], names: Names, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Intermediates, or their gradients, with the axes in the order that the taps' patterns say."""
    axes = dict(pair(named) for named in names.taps.values())
    return {name: arranged(x, axes.get(name), sizes, axes_moved) for name, x in tape.items()}


def pulling(outputs: Mapping[str, Any], drawn: Drawn) -> dict[str, np.ndarray] | None:
    """The incoming gradients of what was returned; None where a shape is wrong, which the outputs' verdict tells.

    Raises:
        ValueError: an output that gets a gradient was not returned.
    """
    absent = [name for name, x in drawn.pulled.items() if name not in outputs and x.any()]
    if absent:
        raise ValueError(
            f"replay: expected the outputs that get a gradient in the trace, {', '.join(drawn.pulled)}, got none for "
            f"{', '.join(absent)}; return it, and name it in outputs="
        )
    held = {name: x for name, x in drawn.pulled.items() if name in outputs}
    return held if all(tuple(np.shape(outputs[name])) == x.shape for name, x in held.items()) else None


# The candidates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Port:
    """Somebody's implementation, ready to be judged.

    Attributes:
        candidate: runs a case, as the trees' own candidates do.
        params: its weights under our names; None for a function, which gets those that are drawn.
        dtype: of its weights, or the one asked for.
        arguments: the arguments of ours that it takes.
        required: those that it cannot do without.
    """

    candidate: Candidate
    params: dict[str, np.ndarray] | None
    dtype: str
    arguments: tuple[str, ...]
    required: tuple[str, ...]


def port(
    candidate: Any,
    config: Config,
    names: Names,
    framework: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Port:
    """Make a candidate of a torch module, a Flax module or a function.

    Raises:
        TypeError: it is none of them.
        MissingDeviceError: there is no such device.
        ValueError: names that do not fit the variant or the candidate.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"assert_parity: expected dtype= to be one of {', '.join(map(repr, DTYPES))}, got {dtype!r}; name it so"
        )
    kind = framework_of(candidate)
    framework = framework or kind
    makers = {"torch": torch_port, "jax": jax_port, "numpy": array_port}
    if framework not in makers:
        raise ValueError(
            f"assert_parity: expected framework= to be one of {', '.join(makers)}, got {framework!r}; "
            f"{contract.nearest(framework, tuple(makers))}"
        )
    return makers[framework](candidate, config, names, dtype, device)


def torch_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A torch module, by its parameters and forward hooks; or a function of tensors."""
    import torch

    is_module = isinstance(candidate, torch.nn.Module)
    wanted = None if device is None else torch_device(device)
    frozen = is_module and not all(x.requires_grad for x in candidate.parameters())
    if is_module and (dtype or wanted or frozen):
        candidate = deepcopy(candidate).to(device=wanted, dtype=getattr(torch, dtype) if dtype else None)
        for x in candidate.parameters():  # frozen ones too: their gradients are judged
            x.requires_grad_(x.is_floating_point())
    own = dict(candidate.named_parameters()) if is_module else {}
    floats = [x for x in own.values() if x.is_floating_point()]
    dtype = dtype or (str(floats[0].dtype).rpartition(".")[2] if floats else "float32")
    where: Any = floats[0].device if floats else wanted or torch.device("cpu")
    params, moves = None, []
    if is_module:
        params, moves = read_weights(names.weights, config, {name: from_torch(x) for name, x in own.items()})
    taken = accepted(candidate, config, names)

    @torch.enable_grad()
    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        sizes, outcome = letters_of(case, drawn), Outcome()
        given = {name: to_torch(x, where) for name, x in drawn.inputs.items()}
        leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
        given = {name: x.clone() for name, x in given.items()}  # a candidate may write into what it gets
        weights = {} if is_module else {name: to_torch(x, where) for name, x in drawn.params.items()}
        weights = {name: x.requires_grad_() for name, x in weights.items()}
        copies = {name: x.clone() for name, x in weights.items()}
        function = candidate if is_module or not weights else lambda *a, **k: candidate(copies, *a, **k)
        with hooked(candidate, names) if taped and is_module else nothing() as seen:
            outputs, tape = returned(invoke(function, given, taken, names, sizes), names, sizes)
        tape |= dict(tapped(seen, names))
        strange = [f"{name} {type(x).__name__}" for name, x in (outputs | tape).items() if not torch.is_tensor(x)]
        if strange:
            raise TypeError(
                f"assert_parity: expected tensors from the candidate, got {', '.join(strange)}; "
                f"take the tensor out of it with call="
            )
        used = {name: own[name] for step in moves for name in step.keys}
        taps = {name: x for name, x in tape.items() if x.requires_grad}
        targets = [*leaves.values(), *weights.values(), *used.values(), *taps.values()]
        collect(outcome, "outputs", outputs, from_torch)
        collect(outcome, "tape", in_our_axes(tape, names, sizes), from_torch)
        dys = pulling(outputs, drawn)
        if targets and dys is not None:
            # What does not depend on anything has the gradient 0: a cut is a difference, and is told as one.
            through = {name: x for name, x in dys.items() if outputs[name].requires_grad}
            pull = [to_torch(x, where).to(outputs[name].dtype) for name, x in through.items()]
            sources = [outputs[name] for name in through]
            found = torch.autograd.grad(sources, targets, pull, allow_unused=True) if through else [None] * len(targets)
            found = [torch.zeros_like(x) if g is None else g for x, g in zip(targets, found, strict=True)]
            keys = [*leaves, *weights, *(("own", name) for name in used), *(("tap", name) for name in taps)]
            by_key = dict(zip(keys, found, strict=True))
            grads = {f"d{name}": by_key[name] for name in (*leaves, *weights)}
            collect(outcome, "grads", grads, from_torch)
            theirs = {name: from_torch(by_key["own", name]) for name in used}
            mine = {f"d{name}": x for step in moves for name, x in step.ours(theirs).items()}
            collect(outcome, "grads", mine, np.asarray)
            moved = in_our_axes({name: by_key["tap", name] for name in taps}, names, sizes)
            collect(outcome, "cotangents", {scoped(name): x for name, x in moved.items()}, from_torch)
        return outcome

    kind = "module" if is_module else "function"
    return Port(
        Candidate("your torch", kind, where.type, run),
        params,
        dtype,
        tuple(taken),
        needed(candidate, config, names, taken),
    )


def refuse_unknown(framework: str, name: str, known: tuple[str, ...]) -> None:
    """A name that no machine has is a mistake, not an absent device.

    Raises:
        ValueError: naming the devices of the framework.
    """
    if name not in known:
        raise ValueError(f"device: expected a device of {framework}, got {name!r}; {contract.nearest(name, known)}")


def torch_device(name: str) -> Any:
    import torch

    kind = name.partition(":")[0]
    known = ["cpu", *accelerators("torch")]
    refuse_unknown("torch", kind, ("cpu", "cuda", "mps", "xpu"))
    if kind not in known:
        raise MissingDeviceError(f"device: expected one of {', '.join(known)}, got {name!r}; torch finds no other here")
    return torch.device(name)


@contextmanager
def nothing() -> Iterator[dict[str, Any]]:
    yield {}


@contextmanager
def hooked(module: Any, names: Names) -> Iterator[dict[str, Any]]:
    """Forward hooks on the submodules that a tap's pattern finds; their outputs by the submodule's name.

    The module goes on with a copy, so that what it writes into it later is not seen here.
    """
    import torch

    seen: dict[str, Any] = {}
    known = dict(module.named_modules())
    handles = []
    for pattern in names.taps:
        found = [name for name in known if re.fullmatch(pattern, name)]
        if not found:
            raise ValueError(
                f"assert_parity: expected a submodule named like {pattern!r} in taps=, got none; "
                f"{contract.nearest(pattern, tuple(name for name in known if name))}"
            )
        for name in found:

            def keep(_: Any, __: Any, out: Any, name: str = name) -> Any:
                first = out[0] if isinstance(out, tuple) and out else out
                if not torch.is_tensor(first):
                    return out
                seen[name] = first
                return first.clone() if first is out else (first.clone(), *out[1:]) if type(out) is tuple else out

            handles.append(known[name].register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def jax_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A Flax NNX module, with what it sows as intermediates; or a function of JAX arrays."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    def held_to(dtype: str | None) -> None:
        if dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "assert_parity: expected JAX to compute in float64, got jax_enable_x64=False; call "
                'jax.config.update("jax_enable_x64", True) first'
            )

    held_to(dtype)
    is_module = isinstance(candidate, nnx.Module)
    own: dict[str, Any] = {}
    if is_module:
        flat = dict(nnx.to_flat_state(nnx.state(candidate, nnx.Param)))
        own = {".".join(map(str, path)): x[...] for path, x in flat.items()}
    floats = [x for x in own.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    if dtype:
        own = {n: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for n, x in own.items()}
    dtype = dtype or (str(floats[0].dtype) if floats else "float32")
    where = jax_device(device or "cpu")
    own = jax.device_put(own, where)
    params, moves = None, []
    if is_module:
        params, moves = read_weights(names.weights, config, {name: np.asarray(x) for name, x in own.items()})
    taken, turns = accepted(candidate, config, names), count()

    def with_weights(held: Mapping[str, Any]) -> Any:
        graph, state, counts, rest = nnx.split(candidate, nnx.Param, nnx.RngCount, ...)
        turn = next(turns)
        counts = jax.tree.map(lambda x: x + turn, counts)  # each run draws anew, as a module of torch does
        flat = [(path, x.replace(held[".".join(map(str, path))])) for path, x in nnx.to_flat_state(state)]
        return nnx.merge(graph, nnx.from_flat_state(flat), counts, rest, copy=True)

    def call(held: Mapping[str, Any], leaves: Any, rest: Any, sizes: Any) -> Any:
        function = with_weights(held) if is_module else candidate
        if not is_module and held:
            function = lambda *a, **k: candidate(held, *a, **k)  # noqa: E731 - a name for a partial application
        seen: dict[str, Any] = {}
        given = {**leaves, **rest}
        if is_module:  # whatever it sows: outside of capture Flax warns of that
            sown = nnx.capture(lambda module: invoke(module, given, taken, names, sizes), nnx.Intermediate)
            result, state = sown(function)
            seen = {".".join(map(str, path)): last(x.get_value()) for path, x in nnx.to_flat_state(state)}
            absent = [p for p in names.taps if not any(re.fullmatch(p, name) for name in seen)]
            if absent:
                raise ValueError(
                    f"assert_parity: expected the module to sow an intermediate named like {absent[0]!r}, got "
                    f"{', '.join(seen) or 'none'}; call self.sow(nnx.Intermediate, name, x) where it is computed"
                )
        else:
            result = invoke(function, given, taken, names, sizes)
        outputs, tape = returned(result, names, sizes)
        return outputs, in_our_axes(tape | dict(tapped(seen, names)), names, sizes)

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        held_to(case.dtype)
        sizes, outcome = letters_of(case, drawn), Outcome()
        leaves = {n: jax.device_put(x, where) for n, x in drawn.inputs.items() if x.dtype.kind not in "biu"}
        rest = {n: jax.device_put(x, where) for n, x in drawn.inputs.items() if n not in leaves}
        held = own if is_module else jax.device_put(dict(drawn.params), where)
        vjp: Any = jax.vjp  # its type knows no has_aux

        def forward(held: Any, leaves: Any) -> Any:
            outputs, tape = call(held, leaves, rest, sizes)
            return {n: outputs[n] for n in outputs if n in drawn.pulled}, (outputs, tape)

        sources, pull, (outputs, tape) = vjp(forward, held, leaves, has_aux=True)
        collect(outcome, "outputs", outputs, np.asarray)
        collect(outcome, "tape", tape, np.asarray)
        if pulling(outputs, drawn) is None:
            return outcome
        dheld, dleaves = pull({n: jnp.asarray(drawn.pulled[n], x.dtype) for n, x in sources.items()})
        collect(outcome, "grads", {f"d{n}": x for n, x in dleaves.items()}, np.asarray)
        theirs = {n: np.asarray(x) for n, x in dheld.items()}
        mine = {n: x for step in moves for n, x in step.ours(theirs).items()} if is_module else theirs
        collect(outcome, "grads", {f"d{n}": x for n, x in mine.items()}, np.asarray)
        return outcome

    kind = "module" if is_module else "function"
    return Port(
        Candidate("your jax", kind, where.platform, run),
        params,
        dtype,
        tuple(taken),
        needed(candidate, config, names, taken),
    )


def jax_device(name: str) -> Any:
    import jax

    known = {"cpu": "cpu", **{kind: kind for kind in accelerators("jax")}}
    if {"gpu", "cuda", "rocm"} & set(known):
        known["cuda"] = "gpu"
    refuse_unknown("jax", name, ("cpu", "gpu", "cuda", "rocm", "tpu", "metal"))
    if name not in known:
        raise MissingDeviceError(f"device: expected one of {', '.join(known)}, got {name!r}; jax finds no other here")
    return jax.devices(known[name])[0]


def last(x: Any) -> Any:
    """What a module sowed last under a name."""
    return x[-1] if isinstance(x, tuple) else x


def array_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A function of NumPy arrays, or of anything that takes and gives them: outputs and intermediates, no gradients."""
    if device not in (None, "cpu"):
        raise MissingDeviceError(f"device: expected cpu for a function of NumPy arrays, got {device!r}; set framework=")
    taken = accepted(candidate, config, names)

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        sizes, outcome = letters_of(case, drawn), Outcome()
        held = {name: x.copy() for name, x in drawn.params.items()}
        function = (lambda *a, **k: candidate(held, *a, **k)) if held else candidate
        given = {name: x.copy() for name, x in drawn.inputs.items()}
        outputs, tape = returned(invoke(function, given, taken, names, sizes), names, sizes)
        collect(outcome, "outputs", outputs, np.asarray)
        collect(outcome, "tape", in_our_axes(tape, names, sizes), np.asarray)
        return outcome

    return Port(
        Candidate("your", "function", "cpu", run),
        None,
        dtype or "float64",
        tuple(taken),
        needed(candidate, config, names, taken),
    )
