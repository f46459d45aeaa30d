"""Dilated attention against scalar loops, patterns drawn by hand, and multi-head attention under a mask."""

from math import inf, sqrt

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.dilated import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops ---------------------------------------------------------------------------------------------------------


def sees(config: Config, i: int, j: int) -> bool:
    """Key j is among those that the query reaches, going left and then right by whole dilations."""
    left, right = config.steps or (None, None)
    reached, place, taken = {i}, i - config.dilation, 1
    while place >= 0 and (left is None or taken <= left):
        reached.add(place)
        place, taken = place - config.dilation, taken + 1
    place, taken = i + config.dilation, 1
    while place <= j and (right is None or taken <= right):
        reached.add(place)
        place, taken = place + config.dilation, taken + 1
    return j in reached


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) if sees(config, i, j) else -inf

    return stacked([heads_by_hand(config, w, row, score) for row in rows], "y", "out1")


# Who sees whom --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [TREES["numpy"], TREES["torch"]], ids=["numpy", "torch"])
def test_a_cache_reaches_back_whole_dilations(tree: Tree) -> None:
    """Two steps of three positions need seven slots: the own one and six before."""
    config = Config(d_model=6, num_heads=2, dilation=3, steps=(2, None), causal=True)
    w, x = weights_of(config), np.random.default_rng(2).normal(size=(2, 17, 6))
    layer, want = layer_of(tree, config, w), bounded(config, {"query": x}, w)["y"]
    cache, found = layer.init_cache(2, 17), []
    assert {array.shape[1] for array in cache.arrays.values()} == {7 + 1}
    for part in np.split(x, [1, 2, 9, 10, 15], axis=1):
        y, cache = layer.step(tree.array(np.ascontiguousarray(part)), cache)
        found.append(tree.numpy(y))
    assert ratio(np.concatenate(found, axis=1), ErrArray(want.v, 2 * want.b)) <= 1


def test_without_gaps_it_is_a_window(tree: Tree) -> None:
    config = Config(d_model=6, num_heads=2, dilation=1, steps=(2, 1))
    w, x = weights_of(config), np.random.default_rng(3).normal(size=(2, 7, 6))
    want = bounded(mha.Config(d_model=6, num_heads=2, window=(2, 1)), {"query": x}, w)["y"]
    assert ratio(tree(layer_of(tree, config, w), {"query": x})[0], want) <= 1


def test_fields_that_cannot_be(tree: Tree) -> None:
    for field, value in (("dilation", 0), ("steps", (1, -1))):
        with pytest.raises(ValueError, match=f"dilated: expected {field} to be "):
            tree.package.build("dilated", d_model=6, num_heads=2, **{"dilation": 2, field: value})
