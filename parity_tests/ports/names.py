"""How a candidate's names, axes and arguments map to ours. Names are mapped, never guessed."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from math import prod
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights.layouts._rearrange import parse, parse_side, rearrange, solve
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
            `{("w_q", "w_k", "w_v"): ("qkv.weight", "(p h k) d -> p d h k")}`, where keys and values have fewer heads
            `"(h k | g k | g v) d -> d h k, d g k, d g v"`.
        arguments: our argument to their keyword or (their keyword, "our axes -> theirs"), or to None where it is not to
            be given. Axes of a mask or bias that the right side leaves out are those along which it is the same:
            `{"mask": ("attention_mask", "b h t s -> b s")}` is a mask of the keys alone. Others are given to the
            argument of the same name, the first one by position.
        outputs: what is returned, in order: "y", "out1" (the weights), or (name, "their axes -> ours"); None for what
            is not compared.
        taps: a regular expression, which the whole name of a submodule or an intermediate must match, to the name on
            our tape, or (that name, "their axes -> ours").
        call: called as `call(candidate, **arguments)` with our names, in place of the candidate itself.
        gradients: whether they are asked for.
        vjp: of a function of NumPy arrays, its backward pass by hand: called as the function is, and with `dy=`, the
            gradient of y (`dout1=` of a second output that has one). It returns the gradients of the arguments and
            weights by our names, 0 where nothing depends on one, None for one that is not to be judged.
    """

    weights: Weights = None
    arguments: Mapping[str, Named | None] | None = None
    outputs: tuple[Named | None, ...] = ("y",)
    taps: Mapping[str, Named] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    gradients: bool = True
    vjp: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.vjp is not None and not callable(self.vjp):
            raise TypeError(
                f"assert_parity: expected vjp= to be a function, got {type(self.vjp).__name__}; give one that is "
                f"called as the candidate is, with dy="
            )
        for pattern in self.taps:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"assert_parity: expected regular expressions in taps=, got {pattern!r}: {error}; "
                    f"escape a name, as by re.escape"
                ) from None
        listed = {
            "arguments": (self.arguments or {}).values(),
            "outputs": self.outputs,
            "taps": self.taps.values(),
        }
        for option, values in listed.items():
            for pattern in (pair(named)[1] for named in values if named is not None):
                if pattern is not None:
                    check_pattern(pattern, option)


BY_LETTERS = "name each axis by its letter"
ALIKE = f"{BY_LETTERS}, and leave out on the right those along which it is the same: b h t s -> b s"


def check_pattern(pattern: str, option: str) -> None:
    """Refuse what is no pattern, by the option that holds it.

    Raises:
        ValueError: other words than letters, no arrow, or letters of one side that the other lacks.
    """
    read, advice = (left_out, ALIKE) if option == "arguments" else (parse, BY_LETTERS)
    try:
        read(pattern)
    except ValueError as error:
        rule, _, _ = str(error).partition(", got ")
        raise ValueError(f"assert_parity: {rule} in {option}=, got {pattern!r}; {advice}") from None


def left_out(pattern: str) -> list[str]:
    """The letters that the right side of an argument's pattern leaves out.

    Raises:
        ValueError: it is no such pattern.
    """
    left, arrow, right = pattern.partition("->")
    ours, theirs = ([x for axis in parse_side(side, pattern) for x in axis] for side in (left, right))
    if not arrow or len({*theirs}) < len(theirs) or not {*theirs} <= {*ours}:
        raise ValueError("expected a pattern from our axes to theirs, each letter once, got another")
    return [letter for letter in ours if letter not in theirs]


def framework_of(candidate: Any) -> str:
    """The framework of a module by its class; "numpy" for anything else that can be called."""
    if isinstance(candidate, type):
        raise TypeError(f"assert_parity: expected a module, got the class {candidate.__name__}; build one of it first")
    if is_linen(candidate):
        raise TypeError(
            f"assert_parity: expected a Linen module with its variables, got {type(candidate).__name__} alone; give "
            f"(module, variables)"
        )
    if isinstance(candidate, tuple) and len(candidate) == 2 and is_linen(candidate[0]):
        return "jax"
    for base in type(candidate).__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "Module" and root in ("torch", "flax", "equinox"):
            return "torch" if root == "torch" else "jax"
    if not callable(candidate):
        raise TypeError(
            f"assert_parity: expected a module of torch, Flax or Equinox or a function, got "
            f"{type(candidate).__name__}; wrap what computes attention in a function of its arguments"
        )
    return "numpy"


def is_linen(candidate: Any) -> bool:
    return any(base.__name__ == "Module" and base.__module__ == "flax.linen.module" for base in type(candidate).__mro__)


def is_equinox(candidate: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "equinox" for base in type(candidate).__mro__)


def pair(named: Named) -> tuple[str, str | None]:
    return (named, None) if isinstance(named, str) else named


def letters_of(case: Case, drawn: Drawn) -> dict[str, int]:
    """The size of every axis letter in a call."""
    sizes = dict(case.config.sizes())
    for name, arg in case.config.arguments().items():
        if name in drawn.inputs and arg.kind in ("array", "integers"):
            sizes |= dict(zip(arg.axes.split(), drawn.inputs[name].shape, strict=True))
    if "s" not in sizes and "t" in sizes:
        sizes["s"] = sizes["t"]
    return sizes


def arranged(x: Any, pattern: str | None, sizes: Mapping[str, int], move: Callable[..., Any] = rearrange) -> Any:
    return x if pattern is None else move(x, pattern, sizes)


def axes_moved(x: Any, pattern: str, sizes: Mapping[str, int]) -> Any:
    """`rearrange` for an array of any framework, so that gradients pass through it.

    An axis of a single letter has the array's own size: 1 where a mask is the same along it. Only such axes are left
    out on the right.

    Raises:
        ValueError: the right side leaves out an axis along which the array has several numbers.
    """
    left, right = (parse_side(side, pattern) for side in pattern.split("->"))
    known = dict(sizes) | solve(left, tuple(x.shape), sizes)
    if len(left) == len(x.shape):
        known |= {axis[0]: size for axis, size in zip(left, x.shape, strict=True) if len(axis) == 1}
    unknown = [letter for axis in left for letter in axis if letter not in known]
    shape = "" if unknown else tuple(prod(known[letter] for letter in axis) for axis in left)
    if shape != tuple(x.shape):
        want = f"with as many axes as {pattern!r}" if unknown else f"{shape} for {pattern!r}"
        raise ValueError(
            f"assert_parity: expected an array {want}, got the shape {tuple(x.shape)}; correct the pattern"
        )
    dropped = [letter for letter in left_out(pattern) if known[letter] != 1]
    if dropped:
        raise ValueError(
            f"assert_parity: expected an array that is the same along {', '.join(dropped)} for {pattern!r}, got the "
            f"shape {tuple(x.shape)}; draw it so, or map every axis"
        )
    right = (*((letter,) for letter in left_out(pattern)), *right)
    lead = len(left_out(pattern))
    source = [letter for axis in left for letter in axis]
    target = [letter for axis in right for letter in axis]
    x = x.reshape([known[letter] for letter in source])
    x = (x.permute if hasattr(x, "permute") else x.transpose)([source.index(letter) for letter in target])
    return x.reshape([prod(known[letter] for letter in axis) for axis in right[lead:]])


def alike(drawn: Drawn, names: Names) -> Drawn:
    """The same call, with masks and biases that have one place along each axis that their pattern leaves out."""
    held = dict(drawn.inputs)
    for name, named in (names.arguments or {}).items():
        pattern = None if named is None else pair(named)[1]
        if pattern is None or name not in held:
            continue
        letters = [letter for axis in parse_side(pattern.partition("->")[0], pattern) for letter in axis]
        for axis in (letters.index(letter) for letter in left_out(pattern)):
            held[name] = held[name].take([0], axis)
    return replace(drawn, inputs=held)


def accepted(candidate: Any, config: Config, names: Names) -> dict[str, Named]:
    """Our arguments that a candidate takes, with the keyword it has for each; "" for the first, by position.

    Raises:
        ValueError: a name in `arguments` that the variant does not have, or a pattern that its array cannot have.
    """
    mapped = dict(names.arguments or {})
    for name, named in mapped.items():
        if name not in config.arguments():
            raise ValueError(
                f"assert_parity: expected arguments of {config.variant} in arguments=, got {name!r}; "
                f"{contract.did_you_mean(name, tuple(config.arguments()))}"
            )
        check_axes(name, config, None if named is None else pair(named)[1])
    found = parameters(candidate, config, names)
    known = {p.name for p in found if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    every = names.arguments is None and any(p.kind is Parameter.VAR_KEYWORD for p in found)
    theirs = {pair(named)[0] for named in mapped.values() if named is not None}
    by_name = {name: name for name in config.arguments() if (every or name in known) and name not in theirs}
    by_name = other_names(config, known - theirs) | by_name if names.call is None else by_name
    first = next(iter(config.arguments()))
    by_position = {} if first in by_name or (found and found[0].name in theirs) else {first: ""}
    if names.call is None:
        by_position |= positional_only(found, config)
    taken = by_name | by_position | mapped
    in_order = ((name, taken.get(name)) for name in config.arguments())
    taken = filled({name: named for name, named in in_order if named is not None}, config)
    refuse_unfilled(found, taken, config, names)
    return taken


# What ports call the arrays of a call; a mask's other names say nothing of what True means, so none stands here.
OTHER_NAMES = {
    "query": ("queries", "q", "inputs_q", "query_"),
    "key": ("keys", "k", "inputs_k", "key_"),
    "value": ("values", "v", "inputs_v", "value_"),
}


def other_names(config: Config, known: Collection[str]) -> dict[str, Named]:
    """The candidate's usual names of our arguments, where each has one of them and none of our own."""
    found = {}
    letters = {"q", "k"} <= {*known}  # alone, k may be how many keys are taken
    for ours, others in OTHER_NAMES.items():
        theirs = [name for name in others if name in known and (letters or len(name) > 1)]
        if ours in config.arguments() and ours not in known and len(theirs) == 1:
            found[ours] = theirs[0]
    return found


def positional_only(found: Iterable[Parameter], config: Config) -> dict[str, Named]:
    """Our arguments that a candidate takes by position alone: the first one, and those of a usual name behind it."""
    names = [p.name for p in found if p.kind is Parameter.POSITIONAL_ONLY]
    taken = {}
    for ours, theirs in zip(config.arguments(), names, strict=False):
        if taken and theirs not in (ours, *OTHER_NAMES.get(ours, ())):
            break
        taken[ours] = ""
    return taken


def refuse_unfilled(found: list[Parameter], taken: Mapping[str, Named], config: Config, names: Names) -> None:
    """A call needs every argument of a candidate that has no default.

    Raises:
        ValueError: naming those that no argument of ours goes to, with the arguments= to write.
    """
    unfilled = [p.name for p in unmapped(found, taken, names) if p.default is Parameter.empty]
    if not unfilled:
        return
    if names.call is not None:
        fix = f"its arguments behind the candidate are ours, {', '.join(config.arguments())}"
    else:
        free = [name for name in config.arguments() if name not in taken]
        ours = {name: meant(name, free, i) for i, name in enumerate(unfilled)}
        given = {our: name for name, our in ours.items() if our is not None}
        words = ", ".join(f"{our!r}: {name!r}" for our, name in given.items())
        masks = " (a mask is True where a query may attend; call= converts another)" if "mask" in given else ""
        fix = f"write arguments={{{words}}}{masks}" if words else "give call=, which says how it is called"
    raise ValueError(
        f"assert_parity: expected every argument of the candidate that has no default to be one of ours, got "
        f"{', '.join(unfilled)}; {fix}"
    )


def unmapped(found: list[Parameter], taken: Mapping[str, Named], names: Names) -> list[Parameter]:
    """A candidate's own arguments that none of ours goes to, by name or by position."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    by_name = {ours if names.call else pair(named)[0] for ours, named in taken.items()}
    by_position = 0 if names.call else sum(pair(named)[0] == "" for named in taken.values())
    return [p for p in [p for p in found if p.kind in kinds][by_position:] if p.name not in by_name]


def meant(theirs: str, free: list[str], place: int) -> str | None:
    """Our argument that one of the candidate's is likely to be: by its name, or else by its place."""
    named = [ours for ours in free if theirs in OTHER_NAMES.get(ours, ())]
    named += [ours for ours in free if theirs.endswith(ours)] + [ours for ours in free if ours in theirs]
    return named[0] if named else free[place] if place < len(free) else None


def check_axes(name: str, config: Config, pattern: str | None) -> None:
    """Refuse a pattern in arguments= that does not begin with the argument's axes, or leaves out what it needs.

    Raises:
        ValueError: saying which axes the argument has.
    """
    if pattern is None:
        return
    kind, axes = config.arguments()[name].kind, config.arguments()[name].axes
    axes = f"{axes[:-1]}s" if axes.endswith("t t") else axes  # in self-attention both are the sequence's
    if [word for word in pattern.partition("->")[0].split() if word not in "()"] != axes.split():
        raise ValueError(
            f"assert_parity: expected a pattern in arguments= that begins with {axes!r}, got {pattern!r}; "
            f"the left side has the axes of {name}"
        )
    if left_out(pattern) and kind not in ("mask", "bias"):
        raise ValueError(
            f"assert_parity: expected every axis of {name} on the right in arguments=, got {pattern!r}; "
            f"only a mask or a bias is the same along an axis"
        )


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
    inner = candidate[0] if isinstance(candidate, tuple) else candidate
    inner = getattr(inner, "_orig_mod", inner)  # what torch.compile was given
    function = names.call or getattr(inner, "forward", inner)
    try:
        found = list(signature(function).parameters.values())
    except ValueError:
        raise TypeError(
            f"assert_parity: expected a candidate with a signature, got {function!r}; wrap it in a function of our "
            f"arguments, or map them with arguments="
        ) from None
    if names.call is None and is_equinox(candidate):  # there key= draws dropout
        found = [p for p in found if not (p.name == "key" and p.kind is Parameter.KEYWORD_ONLY)]
    return found[1:] if names.call is not None or takes_params(candidate, config) else found


def needed(candidate: Any, config: Config, names: Names, taken: Mapping[str, Named]) -> tuple[str, ...]:
    """Our arguments that a candidate cannot do without: those without a default in its signature."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = parameters(candidate, config, names)
    asked = {p.name for p in found if p.kind in kinds and p.default is Parameter.empty}
    asked |= {""} if any(p.kind is Parameter.POSITIONAL_ONLY and p.default is Parameter.empty for p in found) else set()
    return tuple(ours for ours, theirs in taken.items() if (ours if names.call else pair(theirs)[0]) in asked)


def not_given(candidate: Any, config: Config, names: Names, taken: Mapping[str, Named]) -> tuple[str, ...]:
    """The names of a candidate's own arguments that none of ours maps to."""
    return tuple(p.name for p in unmapped(parameters(candidate, config, names), taken, names))


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


def of_keys_alone(ndim: int, name: str) -> str:
    """How arguments= asks for a mask of the keys alone, where ours has these axes; "" where ours is one."""
    axes = {4: "b h t s", 3: "b t s"}.get(ndim)
    return f'; {{"mask": ("{name}", "{axes} -> b s")}} gives one of the keys alone' if axes else ""


OF_ONE_SEQUENCE = "; a module of one sequence takes call=lambda module, query: jax.vmap(module)(query)"


def invoke(candidate: Any, given: Mapping[str, Any], taken: Mapping[str, Named], names: Names, sizes: Any) -> Any:
    """Call a candidate with our arguments under its names."""
    positional, keywords = arguments_of(given, taken, names, sizes)
    called = candidate
    if names.call is not None:
        positional, candidate = [candidate], names.call
    try:
        return candidate(*positional, **keywords)
    except Exception as error:
        got = ", ".join(f"{name} {type(x).__module__.partition('.')[0]} {tuple(x.shape)}" for name, x in given.items())
        error.add_note(
            f"assert_parity: the candidate raised this when it was called with {got}; arguments= and call= say how it "
            f"is called, framework= whose arrays a function gets"
            + (of_keys_alone(given["mask"].ndim, pair(taken["mask"])[0]) if "mask" in given else "")
            + (OF_ONE_SEQUENCE if is_equinox(called) and names.call is None else "")
        )
        raise


def arguments_of(
    given: Mapping[str, Any], taken: Mapping[str, Named], names: Names, sizes: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Our arguments as a candidate gets them, by position and by keyword."""
    positional, keywords = [], {}
    for name, x in given.items():
        key, pattern = pair(taken[name])
        key = name if names.call is not None else key
        x = arranged(x, pattern, sizes, axes_moved)
        if key:
            keywords[key] = x
        else:
            positional.append(x)
    return positional, keywords


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
