"""For the tests of layers with a state: one result in several forms, at once or in steps, with and without padding."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of

B, T = 2, 7
# Padding before, between and behind the positions that are real.
REAL = np.array([[False, True, True, False, True, True, True], [True, True, False, False, True, False, False]])
# The numbers of documents: one that comes again, one of a single position, and changes within a chunk and between two.
DOCUMENTS = np.array([[4, 4, 4, 4, 0, 0, 4], [1, 2, 2, 2, 2, 2, 2]])


def scalar_rows(config: Any, loops: Callable[..., Any], inputs: Arrays, params: Arrays) -> np.ndarray:
    """What loops over one sequence of real positions give, for every batch row; padded positions give what 0 gives.

    `loops(config, weights, x)` takes and gives lists of numbers; an empty row stands for a position that is not there.
    Each of the documents that are packed into a row goes through them by itself.
    """
    x, w = inputs["query"], {name: p.tolist() for name, p in params.items()}
    real = np.broadcast_to(inputs.get("mask", True), x.shape[:2])
    y = np.broadcast_to(params.get("b_o", 0.0), (*x.shape[:2], params["w_o"].shape[-1])).copy()
    for i, places in documents_of(inputs, real):
        y[i, places] = loops(config, w, x[i, places].tolist())
    return y


def documents_of(inputs: Arrays, real: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The batch row and the real positions of every document: one begins where their number changes."""
    for i, row in enumerate(real):
        places, numbers = np.flatnonzero(row), inputs.get("documents", np.zeros(real.shape, int))[i, row]
        parts = np.split(places, 1 + np.flatnonzero(numbers[1:] != numbers[:-1]))
        yield from ((i, part) for part in parts if part.size)


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


def documents_apart(tree: Tree, config: Any) -> str:
    """Where packed documents do not get what the reference gives each by itself, outputs or gradients.

    There is padding between them, whose numbers are those of no document. What the reference sums up otherwise, it may
    round otherwise: the bound of the packed call is added.
    """
    weights, x = weights_of(config), drawn(config)["query"]
    inputs = {"query": x, "documents": np.where(REAL, DOCUMENTS, 9), "mask": REAL}
    packed, hidden = bounded(config, inputs, weights), ~REAL[..., None]
    dy = cotangent(packed["y"].shape)
    # A bias at the end is all that padding reaches.
    nothing = bounded(config, {"query": x, "mask": np.zeros_like(REAL)}, weights, pulled={"y": dy * hidden})
    values = {name: part.v * hidden if name == "y" else part.v for name, part in nothing.items()}
    bounds = {name: part.b + packed[name].b for name, part in nothing.items()}
    for i, places in documents_of(inputs, REAL):
        at = np.s_[i : i + 1, places]
        for name, part in bounded(config, {"query": x[at]}, weights, pulled={"y": dy[at]}).items():
            here = at if name in ("y", "dquery") else ...
            values[name][here] += part.v
            bounds[name][here] += part.b
    want = {name: ErrArray(values[name], bounds[name]) for name in packed}
    return apart(results(tree, config, inputs, weights), want)


def document_steps_apart(tree: Tree, config: Any) -> str:
    """Where pieces that begin, go on with and end documents, with padding between, do not give the full pass."""
    weights, x, words = weights_of(config), drawn(config)["query"], ""
    layer, numbers = layer_of(tree, config, weights), np.where(REAL, DOCUMENTS, 9)
    want = bounded(config, {"query": x, "documents": numbers, "mask": REAL}, weights)["y"]
    for lengths in ((1,) * T, (3, 4), (2, 1, 4)):
        cache, at, found = layer.init_cache(B, T), 0, []
        for n in lengths:
            part = slice(at, at + n)
            given = {"documents": tree.array(numbers[:, part]), "valid": tree.array(REAL[:, part])}
            y, cache = layer.step(tree.array(x[:, part]), cache, **given)
            found.append(tree.numpy(y))
            at += n
        words += apart({"y": np.where(REAL[..., None], np.concatenate(found, axis=1), want.v)}, {"y": want})
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
