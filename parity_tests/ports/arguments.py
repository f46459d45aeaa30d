"""Which of our arguments a candidate takes, and under which of its names."""

from collections.abc import Collection, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.cases import given
from parity_tests.ports.names import Named, Names, framework_of, is_equinox, left_out, pair


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
        taking = {our: name for name, our in ours.items() if our is not None}
        words = ", ".join(f"{our!r}: {name!r}" for our, name in taking.items())
        masks = " (a mask is True where a query may attend; call= converts another)" if "mask" in taking else ""
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
    absent = [name for name in given(config, "plain") if name not in taken]
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


def takes_params(candidate: Any, config: Config) -> bool:
    """A function of a variant with weights gets them as its first argument; a module holds its own."""
    return bool(config.params()) and framework_of(candidate) == "numpy"
