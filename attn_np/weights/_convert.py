"""Conversion of one variant of ours to another that computes the same, by layouts that describe a variant."""

from collections.abc import Mapping

import numpy as np

from attn_np import contract
from attn_np.contract import Config, did_you_mean
from attn_np.weights import layouts
from attn_np.weights._check import check
from attn_np.weights._errors import ConfigMismatchError
from attn_np.weights.layouts import Layout
from attn_np.weights.layouts._base import applied_rules, converted_fields, differences


def convert(config: Config, values: Mapping[str, np.ndarray], to: str) -> tuple[Config, dict[str, np.ndarray]]:
    """The config and the parameters of the same layer as another variant, bit by bit.

    Raises:
        ConfigMismatchError: a config that the other variant cannot express.
        ValueError: no layout connects the two.
    """
    check(config, values, finite=False)
    return convert_unchecked("weights", config, values, to)


def conversions(variant: str) -> dict[str, Layout]:
    """The variants that a variant can be converted to, each with the layout that does it."""
    layout_by_variant: dict[str, Layout] = {}
    for layout in map(layouts.get, layouts.names()):
        if layout.own_variant == variant:
            layout_by_variant |= dict.fromkeys(layout.tables, layout)
        elif layout.own_variant is not None and variant in layout.tables:
            layout_by_variant[layout.own_variant] = layout
    return layout_by_variant


def convert_unchecked(
    path: str, config: Config, values: Mapping[str, np.ndarray], to: str
) -> tuple[Config, dict[str, np.ndarray]]:
    """As `convert`, for parameters that are known to fit the config; `path` is their file's, for messages."""
    contract.get(to)
    layout_by_variant = conversions(config.variant)
    if to not in layout_by_variant:
        fix = did_you_mean(to, tuple(layout_by_variant)) if layout_by_variant else "it has no equal"
        raise ValueError(f"{config.variant}: expected a variant that it can become, got {to!r}; {fix}")
    layout = layout_by_variant[to]
    from_layout = layout.own_variant == config.variant
    table = layout.tables[to if from_layout else config.variant]
    converted: dict[str, np.ndarray] = {}
    try:
        target = contract.config(to, **converted_fields(table, config, to, from_layout=from_layout))
        round_trip = contract.config(
            config.variant, **converted_fields(table, target, config.variant, from_layout=not from_layout)
        )
        lost = differences(config, round_trip)
        for applied in applied_rules(table, target if from_layout else config) if not lost else ():
            converted |= applied.to_params(values) if from_layout else applied.to_layout(values)
    except ValueError as error:
        raise ConfigMismatchError(
            path, "config", f"a config that {to} can express", str(error), "choose another variant"
        ) from None
    if lost:
        got = ", ".join(f"{name}={getattr(config, name)!r}" for name in lost)
        raise ConfigMismatchError(path, "config", f"a config that {to} can express", got, "choose another variant")
    return target, {name: converted[name] for name in target.shapes()}
