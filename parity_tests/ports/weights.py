"""Our parameters from a candidate's own: by a layout, or by a map of names and patterns."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts._base import AppliedRule, Table, applied_rules
from attn_np.weights.layouts._rearrange import concatenation, parse
from parity_tests.ports.names import Weights, pair


def table_of(weights: Weights, config: Config) -> tuple[Table, dict[str, np.ndarray]]:
    """The table of a layout, or one made of a name map, and the values of the parameters that the map gives itself.

    Such a parameter has a rule like others, with a key of its own that no candidate has.
    """
    if isinstance(weights, str):
        layout = layouts.get(weights)
        chosen = layout.table_name_for(config)
        if chosen is None:
            known = ", ".join(sorted({layout.variant_of(table) for table in layout.tables}))
            raise ValueError(
                f"assert_parity: expected a layout that holds {config.variant}, got {weights!r} with {known}; "
                f"give weights= as a map of names"
            )
        return layout.tables[chosen], {}
    params = config.params()
    rules: dict[Any, Any] = {}
    constants: dict[str, np.ndarray] = {}
    for ours, theirs in (weights or {name: name for name in params}).items():
        names = (ours,) if isinstance(ours, str) else tuple(ours)
        for name in names:
            if name not in params:
                raise ValueError(
                    f"assert_parity: expected parameters of {config.variant} in weights=, got {name!r}; "
                    f"{contract.did_you_mean(name, tuple(params))}"
                )
        if theirs is None or hasattr(theirs, "shape"):
            constants |= {name: constant(theirs, name, config) for name in names}
            rules |= {name: (own_key(name), f"{params[name].axes} -> {params[name].axes}") for name in names}
            continue
        key, pattern = pair(theirs)
        axes = [params[name].axes for name in names]
        pattern = pattern or f"{axes[0]} -> {axes[0]}"
        check_weights_pattern(pattern, names, axes, {config.shapes()[name] for name in names})
        rules[ours] = (key, pattern if "|" in pattern else in_our_letters(pattern, axes[0].split()))
    given_names = {name for ours in rules for name in ((ours,) if isinstance(ours, str) else ours)}
    absent = [name for name in params if name not in given_names]
    if absent:
        raise ValueError(
            f"assert_parity: expected every parameter of {config.variant} in weights=, got none for "
            f"{', '.join(absent)}; map each, leave it out of the config, as biases by its fields, or map it to None "
            f"where the candidate has none and 0 stands in"
        )
    return Table(rules=rules, absent=tuple(map(own_key, constants))), constants


def own_key(name: str) -> str:
    """The key of a parameter whose value weights= gives."""
    return f"{name} of weights="


def constant(given: Any, name: str, config: Config) -> np.ndarray:
    """The value of a parameter that a candidate does not have: an array of weights=, or 0 for None.

    Raises:
        ValueError: an array of another shape.
    """
    shape = config.shapes()[name]
    x = np.zeros(shape) if given is None else np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if x.shape != shape:
        raise ValueError(
            f"assert_parity: expected an array of shape {shape} for {name!r} in weights=, got {x.shape}; "
            f"its axes are {config.params()[name].axes}"
        )
    return x.astype(np.float64)


def check_weights_pattern(pattern: str, names: tuple[str, ...], axes: list[str], shapes: set[tuple[int, ...]]) -> None:
    """Refuse a pattern in weights= whose right side is not what our parameters are; letters may be the user's own.

    Raises:
        ValueError: saying what it should end in.
    """
    among, ends = ", ".join(names), ", ".join(axes)
    targets = [side.split() for side in pattern.partition("->")[2].split(",")]
    bars, letters = "|" in pattern, [each.split() for each in axes]
    if bars and not (len(targets) == len(letters) and all(map(fits_axes, targets, letters))):
        raise ValueError(
            f"assert_parity: expected a pattern in weights= that ends in {ends!r}, got {pattern!r}; "
            f"behind the arrow of one with bars stand the axes of {among}, with commas"
        )
    if not bars and len(shapes) > 1:
        raise ValueError(
            f"assert_parity: expected a pattern with bars in weights= for {among}, of unlike shapes, got {pattern!r}; "
            f"end it in {ends!r}, as '(h k | g k | g v) d -> d h k, d g k, d g v' does"
        )
    try:
        sides = () if concatenation(pattern) else parse(pattern)[1]
    except ValueError as error:
        rule, _, _ = str(error).partition(", got ")
        raise ValueError(f"assert_parity: {rule} in weights=, got {pattern!r}; correct that of {among}") from None
    if not bars and not fits_axes([letter for axis in sides for letter in axis][len(names) > 1 :], letters[0]):
        what = "a first axis for the parameters, then " if len(names) > 1 else ""
        raise ValueError(
            f"assert_parity: expected a pattern in weights= that ends in {what}{axes[0]!r}, got {pattern!r}; "
            f"the right side has the axes of {among}"
        )


def fits_axes(theirs: list[str], ours: list[str]) -> bool:
    """Whether letters name these axes in their order: the same ones, or others that are none of them."""
    return len(theirs) == len(ours) and all(a == b or a not in ours for a, b in zip(theirs, ours, strict=True))


def in_our_letters(pattern: str, axes: list[str]) -> str:
    """A pattern whose last axes are a parameter's, with our letters for those that the parameter does not know."""
    right = [letter for axis in parse(pattern)[1] for letter in axis]
    other = {theirs: ours for theirs, ours in zip(right[-len(axes) :], axes, strict=False) if theirs not in axes}
    free = (letter for letter in ascii_lowercase if letter not in (*axes, *right))
    other |= {letter: next(free) for letter in right[: -len(axes)] if letter in axes}
    return re.sub("[A-Za-z]+", lambda found: other.get(found[0], found[0]), pattern)


def read_weights(
    weights: Weights, config: Config, held: Mapping[str, np.ndarray], notes: dict[str, None]
) -> tuple[Any, list[AppliedRule]]:
    """Our parameters from a candidate's own, and the rules that lead from its names to ours.

    Args:
        weights: how its names map to ours.
        config: the variant's.
        held: the candidate's parameters by name.
        notes: gets the parameters whose gradients are not judged.
    """
    if not config.params():
        return {}, []
    table, constants = table_of(weights, config)
    params, rules, without = {}, [], set[str]()
    found, absent = named_as_in(held, applied_rules(table, config), table.absent)
    for applied in found:
        values = dict(held)
        for key in applied.keys:
            if key not in held and key not in absent:
                known = (
                    contract.did_you_mean(key, tuple(held)) if held else "it has no parameters; buffers are not read."
                )
                raise ValueError(
                    f"assert_parity: expected a parameter {key!r} in the candidate, got none of this name; "
                    f"{known.rstrip('.')}; map it with weights="
                )
            if key not in held:
                values[key] = constants.get(applied.params[0], np.zeros(applied.key_shape()))
                without |= {f"d{name}" for name in applied.params}
            if values[key].shape != applied.key_shape():
                raise ValueError(
                    f"assert_parity: expected {key!r} of shape {applied.key_shape()} ({applied.key_axes()}), "
                    f"got {values[key].shape}; check the pattern in weights= and the config"
                )
        params |= applied.to_params(values)
        rules.append(applied)
    if without:
        notes[f"gradients not judged of what the candidate does not have: {', '.join(sorted(without))}"] = None
    return params, rules


def named_as_in(
    held: Mapping[str, Any], rules: list[AppliedRule], absent: tuple[str, ...]
) -> tuple[list[AppliedRule], tuple[str, ...]]:
    """The rules, and the keys that may be absent, under a candidate's names: it may be a part of what they name, or
    hold it.

    Raises:
        ValueError: it holds several of what they name.
    """
    keys = [key for rule in rules for key in rule.keys if key not in absent]
    if not keys or all(key in held for key in keys):
        return rules, absent
    starts = keys[0].split(".")[:-1]
    common = [".".join(starts[:n]) + "." for n in range(1, len(starts) + 1)]
    cuts = ["", *(start for start in common if all(key.startswith(start) for key in keys))]
    fits: dict[str, tuple[str, str]] = {}
    for cut in cuts:
        short = keys[0].removeprefix(cut)
        for start in (key.removesuffix(short) for key in held if f".{key}".endswith(f".{short}")):
            if all(f"{start}{key.removeprefix(cut)}" in held for key in keys):
                fits[f"{start}{short}"] = cut, start
    if len(fits) > 1:
        raise ValueError(
            f"assert_parity: expected a candidate with one {keys[0]!r}, got several, "
            f"{', '.join(map(repr, list(fits)[:3]))}; give the submodule that is to be judged"
        )
    if not fits:
        return rules, absent
    cut, start = next(iter(fits.values()))

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{start}{name.removeprefix(cut)}" for name in names)

    return [replace(rule, keys=named(rule.keys)) for rule in rules], named(absent)


def of_rules(rules: Iterable[AppliedRule], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is given by the candidate's names, such as gradients, by ours; without parameters that it does not have."""
    whole = (rule for rule in rules if all(key in values for key in rule.keys))
    return {name: x for rule in whole for name, x in rule.to_params(values).items()}


def weights_of(rules: Iterable[AppliedRule]) -> dict[str, str]:
    """The candidate's own names of the gradients of its parameters, by ours."""
    return {f"d{ours}": ", ".join(applied.keys) for applied in rules for ours in applied.params}
