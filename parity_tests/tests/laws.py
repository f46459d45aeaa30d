"""Laws of attention, each said once: pytest asks them of the trees, and the mutation check of copies with a mistake."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.cases import given, tokens_below
from parity_tests.tests.inputs import (
    Arrays,
    Tree,
    at,
    axis,
    config_of,
    first_difference,
    random_inputs,
    same,
)


@dataclass(frozen=True)
class Asked:
    """A layer that a law is asked of.

    Attributes:
        config: of the layer.
        outputs: of a call, by name.
        gradients: of a call's inputs and of the parameters, from a gradient of the first output.
    """

    config: Config
    outputs: Callable[[Arrays], Arrays]
    gradients: Callable[[Arrays, np.ndarray], Arrays]


def of_tree(tree: Tree, variant: str, example: str) -> Asked:
    """An example's layer in a tree."""
    layer = tree.layer(variant, example)

    def outputs(inputs: Arrays) -> Arrays:
        return {"y" if i == 0 else f"out{i}": x for i, x in enumerate(tree(layer, inputs))}

    return Asked(config_of(variant, example), outputs, lambda inputs, dy: tree.gradients(layer, inputs, dy))


def masked(config: Config) -> bool:
    """Queries meet keys under a mask."""
    arg = config.arguments().get("mask")
    return arg is not None and arg.axes.split()[-2] == "t"


def keyed(config: Config) -> bool:
    """Keys are an input of their own."""
    return masked(config) and config.arguments()["mask"].axes.endswith("t s")


def attends_to_itself(config: Config) -> bool:
    """Takes a mask and attends from one sequence to itself when nothing else is given."""
    return masked(config) and "query" in config.arguments() and "key" not in given(config, "plain")


def shown(config: Config, t: int, s: int) -> np.ndarray:
    """Which keys the config itself shows to which queries: causality and window, counted from the last key."""
    ahead = np.arange(s)[None, :] - (np.arange(t)[:, None] + s - t)
    left, right = getattr(config, "window", None) or (None, None)
    right = 0 if getattr(config, "causal", False) else right
    return (ahead >= -(s + t if left is None else left)) & (ahead <= (s + t if right is None else right))


def alone(config: Config, t: int) -> np.ndarray:
    """A mask for two rows in which position 2 of the second sees nothing and is seen by nobody.

    It hides only what the config itself does not hide, so that only both together leave the position alone.
    """
    near = np.zeros((t, t), bool)
    near[2, :] = near[:, 2] = True
    mask = np.stack([np.ones((t, t), bool), ~(near & shown(config, t, t))])
    return mask if axis(config, "mask", "h") is None else mask[:, None]


def overwritten(config: Config, inputs: Arrays, place: int, value: float, names: tuple[str, ...]) -> Arrays:
    """The inputs with one position of the second batch row overwritten, in the arrays named."""
    out = dict(inputs)
    for name in names:
        x = out[name] = inputs[name].copy()
        where = axis(config, name, "s")
        where = axis(config, name, "t") if where is None else where
        index = at(x, {axis(config, name, "b"): 1, where: place})
        x[index] = value if x.dtype.kind == "f" else (x[index] + 1) % tokens_below(config, name)
    return out


def of_keys(config: Config, inputs: Arrays) -> tuple[str, ...]:
    """The arrays with an entry for each key, but for masks."""
    return tuple(n for n, x in inputs.items() if axis(config, n, "s") is not None and x.dtype != bool)


def cotangent(layer: Asked, inputs: Arrays) -> np.ndarray:
    """A random gradient of the first output."""
    return np.random.default_rng(11).normal(size=layer.outputs(inputs)["y"].shape)


def no_bit_changes(layer: Asked, clean: Arrays, dirty: Arrays) -> None:
    """Outputs and gradients of two calls are the same; the gradients are numbers."""
    difference = first_difference(layer.outputs(dirty), layer.outputs(clean))
    assert difference is None, difference
    dy = cotangent(layer, clean)
    found = layer.gradients(dirty, dy)
    assert all(np.isfinite(x).all() for x in found.values()), "a gradient is not finite"
    difference = first_difference(found, layer.gradients(clean, dy))
    assert difference is None, difference


def hidden_keys_influence_nothing(layer: Asked, full: Arrays, value: float) -> None:
    """Whatever stands at a key, value or bias that no query sees; the mask hides what the config still shows."""
    config, mask = layer.config, full["mask"].copy()
    place = mask.shape[-1] - 2
    mask[1, ..., place] = ~shown(config, *mask.shape[-2:])[:, place]
    clean, names = full | {"mask": mask}, of_keys(config, full)
    assert names
    no_bit_changes(layer, clean, overwritten(config, clean, place, value, names))


def padding_influences_nothing(layer: Asked, plain: Arrays, value: float) -> None:
    """Whatever stands at a position that sees nothing and that nobody sees."""
    clean = plain | {"mask": alone(layer.config, plain["query"].shape[1])}
    no_bit_changes(layer, clean, overwritten(layer.config, clean, 2, value, ("query",)))


def keys_beyond_the_window_influence_nothing(layer: Asked, value: float) -> None:
    """Three queries stand at the last three keys; what lies further back than the window reaches is hidden."""
    config: Any = layer.config
    clean = random_inputs(config, {*given(config, "plain"), "key", "value"} & {*config.arguments()}, t=3, s=11)
    first, names = 11 - 3 - config.window[0], of_keys(config, clean)
    no_bit_changes(layer, clean, overwritten(config, clean, first - 1, value, names))
    seen = layer.outputs(overwritten(config, clean, first, 1e3, names))["y"]
    assert not same(seen, layer.outputs(clean)["y"]), "the key beside it is seen"
