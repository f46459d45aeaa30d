"""How a candidate's names, axes and arguments map to ours. Names are mapped, never guessed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts._base import Step, Table, steps
from attn_np.weights.layouts._rearrange import parse, rearrange, solve
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
        taps: a regular expression, which the whole name of a submodule or an intermediate must match, to the name on
            our tape, or (that name, "their axes -> ours").
        call: called as `call(candidate, **arguments)` with our names, in place of the candidate itself.
        gradients: whether they are asked for.
    """

    weights: Weights = None
    arguments: Mapping[str, Named] | None = None
    outputs: tuple[Named | None, ...] = ("y",)
    taps: Mapping[str, Named] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    gradients: bool = True

    def __post_init__(self) -> None:
        for pattern in self.taps:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"assert_parity: expected regular expressions in taps=, got {pattern!r}: {error}; "
                    f"escape a name, as by re.escape"
                ) from None


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
        pattern = in_our_letters(pattern or f"{same} -> {same}", same.split())
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


def in_our_letters(pattern: str, axes: list[str]) -> str:
    """A pattern whose last axes are a parameter's, with our letters for those that the parameter does not know."""
    right = [letter for axis in parse(pattern)[1] for letter in axis]
    other = {theirs: ours for theirs, ours in zip(right[-len(axes) :], axes, strict=False) if theirs not in axes}
    return re.sub("[A-Za-z]+", lambda found: other.get(found[0], found[0]), pattern)


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
        params |= step.to_params(held)
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


def not_given(candidate: Any, config: Config, names: Names, taken: Mapping[str, Named]) -> tuple[str, ...]:
    """A candidate's own arguments that none of ours maps to."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    known = {ours if names.call else pair(theirs)[0] for ours, theirs in taken.items()}
    found = [p.name for p in parameters(candidate, config, names) if p.kind in kinds]
    return tuple(name for name in (found[1:] if "" in known else found) if name not in known)


def refuse_unmapped(grads: Mapping[str, np.ndarray], notes: dict[str, None]) -> None:
    """A parameter that the reference knows nothing of may pass for right while it is 0, as biases are at first.

    Args:
        grads: the gradients of the parameters that weights= does not map, under the candidate's own names.
        notes: gets the names of those that nothing depends on.

    Raises:
        ValueError: the outputs depend on one.
    """
    used = [name for name, x in grads.items() if np.any(x)]
    if used:
        raise ValueError(
            f"assert_parity: expected every parameter that the outputs depend on in weights=, got none for "
            f"{', '.join(used)}; map it, or choose the config that has it"
        )
    if grads:
        notes[f"no output depends on {', '.join(grads)}, which weights= does not map"] = None


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


def returned(
    result: Any, names: Names, sizes: Mapping[str, int], notes: dict[str, None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A candidate's result as named outputs and, from a dictionary, named intermediates in their own axes.

    Args:
        result: what it returned.
        names, sizes: how its names and axes map to ours.
        notes: gets what is not judged.

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
        more = sum(hasattr(x, "shape") for x in parts[len(listed) :])
        if more:
            notes[f"of {len(parts)} returned only {len(listed)} in outputs= (None there leaves one out)"] = None
    absent = [name for name in wanted if found.get(name) is None]
    if absent:
        raise ValueError(
            f"assert_parity: expected the candidate to return {', '.join(wanted)}, got {got}, so no "
            f"{', '.join(absent)}; outputs= names what it returns in order, call= may return a dictionary of our names"
        )
    return {name: arranged(x, wanted[name], sizes, axes_moved) for name, x in found.items()}, tape


def theirs_of(values: Iterable[str], names: Names) -> dict[str, str]:
    """The candidate's own names of the intermediates that it taps, by ours."""
    every = list(values)
    return {pair(ours)[0]: n for pattern, ours in names.taps.items() for n in every if re.fullmatch(pattern, n)}


def weights_of(moves: Iterable[Step]) -> dict[str, str]:
    """The candidate's own names of the gradients of its parameters, by ours."""
    return {f"d{ours}": ", ".join(step.keys) for step in moves for ours in step.params}


def second_run(name: str) -> ValueError:
    """The error of a tapped submodule or intermediate that a call computes twice: which one is meant?"""
    return ValueError(
        f"assert_parity: expected {name!r}, which taps= names, to run once in a call, got a second run; "
        f"give each run a submodule of its own, or tap another"
    )


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
