"""Segmented attention against scalar loops, patterns drawn by hand, and every document by itself."""

from itertools import pairwise
from math import inf, sqrt

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.segments import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops ---------------------------------------------------------------------------------------------------------


def sees(numbers: list[int], i: int, j: int) -> bool:
    """Query i and key j have the number of the same document."""
    return numbers[i] == numbers[j]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x, inputs["segments"]), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    found = []
    for words, numbers, *given in rows:

        def score(h: int, i: int, j: int, q: list[float], k: list[float], numbers: list[int] = numbers) -> float:
            scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
            return scale * sum(a * b for a, b in zip(q, k, strict=True)) if sees(numbers, i, j) else -inf

        found.append(heads_by_hand(config, w, (words, *given), score))
    return stacked(found, "y", "out1")


# Who sees whom --------------------------------------------------------------------------------------------------------


def test_every_document_gets_what_it_gets_by_itself(tree: Tree) -> None:
    """Three documents in a row: outputs, and the gradient of the words."""
    config, whole = Config(d_model=6, num_heads=2, causal=True), mha.Config(d_model=6, num_heads=2, causal=True)
    w, x, cuts = weights_of(config), np.random.default_rng(2).normal(size=(1, 9, 6)), (0, 4, 5, 9)
    inputs = {"query": x, "segments": np.repeat([[300, 2, 44]], [4, 1, 4], axis=1)}
    layer, dy = layer_of(tree, config, w), cotangent((1, 9, 6))
    got = {"y": tree(layer, inputs)[0], "dquery": tree.gradients(layer, inputs, dy)["dquery"]}
    for start, end in pairwise(cuts):
        alone, part = layer_of(tree, whole, w), {"query": np.ascontiguousarray(x[:, start:end])}
        grads = tree.gradients(alone, part, np.ascontiguousarray(dy[:, start:end]))
        found, limits = {"y": tree(alone, part)[0], "dquery": grads["dquery"]}, bounded(config, inputs, w)
        for name, y in found.items():
            bound = ErrArray(y, 2 * limits[name].b[:, start:end])
            assert ratio(got[name][:, start:end], bound) <= 1, (name, start)


def test_documents_are_numbered_by_integers(tree: Tree) -> None:
    layer = tree.build(Config(d_model=6, num_heads=2))
    with pytest.raises(TypeError, match="segments: expected segments of an integer dtype, got float64"):
        tree(layer, {"query": np.zeros((1, 3, 6)), "segments": np.zeros((1, 3))})
    with pytest.raises(ValueError, match=r"segments: expected segments of shape \(b=1, t=3\), got \(1, 2\)"):
        tree(layer, {"query": np.zeros((1, 3, 6)), "segments": np.zeros((1, 2), int)})
