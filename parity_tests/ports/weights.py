"""Our parameters from a candidate's own: by a layout, or by a map of names and patterns."""

import re
from collections.abc import Iterable, Mapping
from string import ascii_lowercase
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts._base import AppliedRule, Table, applied_rules
from attn_np.weights.layouts._rearrange import concatenation, parse
from parity_tests.ports.names import Weights, pair


def table_of(weights: Weights, config: Config) -> Table:
    """The table of a layout, or one made of a name map."""
    if isinstance(weights, str):
        layout = layouts.get(weights)
        chosen = layout.table_name_for(config)
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
                    f"{contract.did_you_mean(name, tuple(params))}"
                )
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
            f"{', '.join(absent)}; map each, or leave it out of the config, as biases by its fields"
        )
    return Table(rules=rules)


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


def read_weights(weights: Weights, config: Config, held: Mapping[str, np.ndarray]) -> tuple[Any, list[AppliedRule]]:
    """Our parameters from a candidate's own, and the rules that lead from its names to ours."""
    if not config.params():
        return {}, []
    rules, params = applied_rules(table_of(weights, config), config), {}
    for applied in rules:
        for key in applied.keys:
            if key not in held:
                known = (
                    contract.did_you_mean(key, tuple(held)) if held else "it has no parameters; buffers are not read."
                )
                raise ValueError(
                    f"assert_parity: expected a parameter {key!r} in the candidate, got none of this name; "
                    f"{known.rstrip('.')}; map it with weights="
                )
            if held[key].shape != applied.key_shape():
                raise ValueError(
                    f"assert_parity: expected {key!r} of shape {applied.key_shape()} ({applied.key_axes()}), "
                    f"got {held[key].shape}; check the pattern in weights= and the config"
                )
        params |= applied.to_params(held)
    return params, rules


def weights_of(rules: Iterable[AppliedRule]) -> dict[str, str]:
    """The candidate's own names of the gradients of its parameters, by ours."""
    return {f"d{ours}": ", ".join(applied.keys) for applied in rules for ours in applied.params}
