"""1.5-entmax attention against scalar loops and known numbers."""

from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract.entmax15 import EXAMPLES, Config
from parity_tests.judge.cases import CALLS, Case
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import bounded, disagreement, each_row, layer_of, of_heads, ratio, stacked, weights_of

# Scalar loops: the threshold by bisection -----------------------------------------------------------------------------


def squares(scores: list[float]) -> list[float]:
    """Weights ((alpha - 1) z - tau)^(1 / (alpha - 1)) for alpha = 1.5, where it is positive, with a sum of 1.

    The threshold is searched, not computed from sorted scores as the layer does it: the sum falls as it rises, from at
    least 1 where it lies 1 below the largest (alpha - 1) z to 0 at the largest.
    """
    alpha = 1.5
    z = [(alpha - 1) * (x - max(scores)) for x in scores]

    def weights(tau: float) -> list[float]:
        return [max(x - tau, 0.0) ** (1 / (alpha - 1)) for x in z]

    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) >= 1.0 else (low, middle)
    return weights(low)


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
        found = iter(squares(seen) if seen else [])
        return [0.0 if x is None else next(found) for x in scores]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh) for row in rows], "y", "out1")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_scalar_loops(example: str, call: str) -> None:
    assert not disagreement(witness, Case("entmax15", example, call, "float64"))


# Known numbers --------------------------------------------------------------------------------------------------------


def test_a_key_ahead_by_two_takes_all(tree: Tree) -> None:
    """Scores of 0 and a bias: ahead by 2 or more a key weighs 1; ahead of one other by d the roots differ by d / 2."""
    config = Config(d_model=7, num_heads=2, head_dim=3)
    zero = {name: 0 * x for name, x in weights_of(config).items()}
    inputs = {"query": normal(1, 3, 7), "bias": np.array([[2.0, 0.0, -1.0], [0.4, 0.0, -3.0], [0.0, 0.0, 0.0]])}
    _, weights = tree(layer_of(tree, config, zero), inputs, return_weights=True)
    want = bounded(config, inputs, zero)["out1"]
    known = np.broadcast_to([[1.0, 0.0, 0.0], [0.64, 0.36, 0.0], [1 / 3, 1 / 3, 1 / 3]], weights.shape)
    assert ratio(weights, want) <= 1
    assert ratio(known, want) <= 1
    assert not weights[..., 1, 2].any()


def test_between_softmax_and_sparsemax(tree: Tree) -> None:
    """Of steep scores over many keys some weights are exactly 0: none of softmax's, and fewer than of sparsemax's."""
    config = Config(d_model=7, num_heads=2, head_dim=3, scale=2.0)
    found = {}
    for variant in ("mha", "entmax15", "sparsemax"):
        other: Any = contract.get(variant).Config
        layer = layer_of(tree, other(**config.as_dict()), weights_of(config))
        _, weights = tree(layer, {"query": normal(2, 31, 7)}, return_weights=True)
        found[variant] = np.mean(weights == 0)
    assert found["mha"] == 0
    assert 0 < found["entmax15"] < found["sparsemax"]
