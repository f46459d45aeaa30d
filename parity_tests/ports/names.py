"""How a candidate's names, axes and arguments map to ours. Names are mapped, never guessed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from attn_np.weights.layouts._rearrange import parse, parse_side, rearrange, solve
from parity_tests.judge.cases import Case, Drawn

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
