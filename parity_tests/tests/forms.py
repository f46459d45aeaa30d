"""For the tests of layers with a state: one result in several forms, at once or in steps, with and without padding."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of

B, T = 2, 7
# Padding before, between and behind the positions that are real.
REAL = np.array([[False, True, True, False, True, True, True], [True, True, False, False, True, False, False]])


def scalar_rows(config: Any, loops: Callable[..., Any], inputs: Arrays, params: Arrays) -> np.ndarray:
    """What loops over one sequence of real positions give, for every batch row; padded positions give what 0 gives.

    `loops(config, weights, x)` takes and gives lists of numbers; an empty row stands for a position that is not there.
    """
    x, w = inputs["query"], {name: p.tolist() for name, p in params.items()}
    real = np.broadcast_to(inputs.get("mask", True), x.shape[:2])
    y = np.broadcast_to(params.get("b_o", 0.0), (*x.shape[:2], params["w_o"].shape[-1])).copy()
    for i, row in enumerate(real):
        if row.any():
            y[i, row] = loops(config, w, x[i, row].tolist())
    return y


def drawn(config: Any) -> Arrays:
    return {"query": np.random.default_rng(T).normal(size=(B, T, config.d_model))}


def results(tree: Tree, config: Any, inputs: Arrays, weights: Arrays) -> Arrays:
    """Outputs and every gradient."""
    layer = layer_of(tree, config, weights)
    (y,) = tree(layer, inputs)
    return {"y": y} | tree.gradients(layer, inputs, cotangent(y.shape))


def apart(found: Arrays, want: dict[str, Any]) -> str:
    """What lies further from the reference than both may err, in words."""
    far = {name: ratio(x, ErrArray(want[name].v, 2 * want[name].b)) for name, x in found.items()}
    missing = [name for name in want if name not in found]
    return ", ".join([f"{name}: error/bound {r:.3g}" for name, r in far.items() if not r <= 1] + missing)


def forms_apart(tree: Tree, config: Any, **fields: Any) -> str:
    """Where another form does not give the outputs and gradients of this one, with padding and without."""
    weights, other, words = weights_of(config), replace(config, **fields), ""
    for inputs in (drawn(config), drawn(config) | {"mask": REAL}):
        words += apart(results(tree, other, inputs, weights), bounded(config, inputs, weights))
    return words


def padding_seen(tree: Tree, config: Any) -> str:
    """Where NaN in padding changes a bit, or the real positions differ from what they get without the padding."""
    weights, clean = weights_of(config), drawn(config) | {"mask": REAL}
    want = results(tree, config, clean, weights)
    dirty = results(tree, config, clean | {"query": np.where(REAL[..., None], clean["query"], np.nan)}, weights)
    words = ", ".join(name for name, x in dirty.items() if not np.array_equal(x, want[name]))
    words += "gradients of padding" * bool(want["dquery"][~REAL].any())
    for i, row in enumerate(REAL):
        alone = bounded(config, {"query": clean["query"][i : i + 1, row]}, weights)["y"]
        words += apart({"y": want["y"][i : i + 1, row]}, {"y": alone})
    return words


def steps_apart(tree: Tree, config: Any) -> str:
    """Where pieces of any length, each from the state that the one before left, do not give the full pass."""
    weights, x, words = weights_of(config), drawn(config)["query"], ""
    layer, want = layer_of(tree, config, weights), bounded(config, {"query": x}, weights)["y"]
    for lengths in ((1,) * T, (3, 4), (2, 1, 4)):
        cache, at, found = layer.init_cache(B, T), 0, []
        for n in lengths:
            y, cache = layer.step(tree.array(x[:, at : at + n]), cache)
            found.append(tree.numpy(y))
            at += n
        words += apart({"y": np.concatenate(found, axis=1)}, {"y": want})
    return words
