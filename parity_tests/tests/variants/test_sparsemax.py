"""Sparsemax attention against scalar loops and known numbers."""

from typing import Any

import numpy as np
import pytest

from attn_np.contract.sparsemax import EXAMPLES, Config
from parity_tests.judge.cases import CALLS, Case
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    disagreement,
    each_row,
    layer_of,
    of_heads,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops: the threshold by bisection -----------------------------------------------------------------------------


def simplex(scores: list[float]) -> list[float]:
    """Nearest weights that add up to 1: the threshold is searched between the largest score less 1 and the largest.

    Not by sorting, as the layer does it: their sum falls as the threshold rises.
    """
    low, high = max(scores) - 1.0, max(scores)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, 0.0) for x in scores) >= 1.0 else (low, middle)
    return [max(x - low, 0.0) for x in scores]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w: Any = {name: p.tolist() for name, p in params.items()}

    def weigh(h: int, scores: list[float | None]) -> list[float]:
        seen = [x for x in scores if x is not None]
        found = iter(simplex(seen) if seen else [])
        return [0.0 if x is None else next(found) for x in scores]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh) for row in rows], "y", "out1")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_scalar_loops(example: str, call: str) -> None:
    assert not disagreement(witness, Case("sparsemax", example, call, "float64"))


# Known numbers --------------------------------------------------------------------------------------------------------


def test_a_key_ahead_by_one_takes_all(tree: Tree) -> None:
    """Scores of 0 and a bias: by 1 or more ahead a key weighs 1, by 1/2 ahead of one other 3/4 and 1/4."""
    config = Config(d_model=7, num_heads=2, head_dim=3)
    layer = layer_of(tree, config, {name: 0 * x for name, x in weights_of(config).items()})
    bias = np.array([[1.0, 0.0, -1.0], [0.5, 0.0, -1.0], [0.0, 0.0, 0.0]])
    _, weights = tree(layer, {"query": normal(1, 3, 7), "bias": bias}, return_weights=True)
    want = bounded(config, {"query": normal(1, 3, 7), "bias": bias}, {n: 0 * x for n, x in weights_of(config).items()})
    known = np.broadcast_to([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]], weights.shape)
    assert ratio(weights, want["out1"]) <= 1
    assert ratio(known, want["out1"]) <= 1
    assert not weights[..., 0, 1:].any()


def test_most_weights_are_zero(tree: Tree) -> None:
    """Steep scores over many keys: exactly 0 beside the support, and the support adds up to 1."""
    config = Config(d_model=7, num_heads=2, head_dim=3, scale=3.0)
    layer = layer_of(tree, config, weights_of(config))
    _, weights = tree(layer, {"query": normal(2, 31, 7)}, return_weights=True)
    assert (weights == 0).mean() > 1 / 2
    assert (weights.max(-1) > 0).all()
