"""Chunked attention against scalar loops, patterns drawn by hand, and multi-head attention under a mask."""

from math import inf, sqrt

import numpy as np
import pytest

from attn_np.contract.chunked import Config
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
    """Query i and key j stand between the same two borders, which are multiples of the chunk's size."""
    border = 0
    while border + config.chunk_size <= i:
        border += config.chunk_size
    return border <= j < border + config.chunk_size


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
def test_a_cache_holds_one_chunk(tree: Tree) -> None:
    """Steps of one and of many positions over several borders are the full pass; the slots are those of one chunk."""
    config = Config(d_model=6, num_heads=2, chunk_size=3, causal=True)
    w, x = weights_of(config), np.random.default_rng(2).normal(size=(2, 11, 6))
    layer, want = layer_of(tree, config, w), bounded(config, {"query": x}, w)["y"]
    cache, found = layer.init_cache(2, 11), []
    assert {array.shape[1] for array in cache.arrays.values()} == {3 + 1}
    for part in np.split(x, [1, 2, 7, 8, 10], axis=1):
        y, cache = layer.step(tree.array(np.ascontiguousarray(part)), cache)
        found.append(tree.numpy(y))
    assert ratio(np.concatenate(found, axis=1), ErrArray(want.v, 2 * want.b)) <= 1


def test_fields_that_cannot_be(tree: Tree) -> None:
    with pytest.raises(ValueError, match="chunked: expected chunk_size to be an integer of at least 1, got 0"):
        tree.package.build("chunked", d_model=6, num_heads=2, chunk_size=0)
