"""Entmax attention against scalar loops and known numbers."""

from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract.entmax_attention import Config
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import bounded, each_row, layer_of, of_heads, ratio, stacked, weights_of

# Scalar loops: the threshold by bisection -----------------------------------------------------------------------------


def powers(alpha: float, scores: list[float]) -> list[float]:
    """Weights ((alpha - 1) z - tau)^(1 / (alpha - 1)), where that is positive, with a sum of 1; alpha above 1.

    The threshold is searched, not computed from sorted scores as the layer does it at 1.5 and 2: the sum falls as it
    rises, from at least 1 where it lies 1 below the largest (alpha - 1) z to 0 at the largest.
    """
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
        found = iter(powers(config.alpha, seen) if seen else [])
        return [0.0 if x is None else next(found) for x in scores]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh) for row in rows], "y", "out1")


# Known numbers --------------------------------------------------------------------------------------------------------

# Scores of 0 and a bias. Sparsemax: 1 ahead a key weighs 1; 1/2 ahead of one other, 3/4 and 1/4. 1.5-entmax:
# ahead by 2 or more a key weighs 1; ahead of one other by d the roots differ by d / 2.
KNOWN = {
    2.0: ([[1.0, 0.0, -1.0], [0.5, 0.0, -1.0], [0.0, 0.0, 0.0]], [0.75, 0.25, 0.0]),
    1.5: ([[2.0, 0.0, -1.0], [0.4, 0.0, -3.0], [0.0, 0.0, 0.0]], [0.64, 0.36, 0.0]),
}


@pytest.mark.parametrize("alpha", KNOWN)
def test_a_key_far_enough_ahead_takes_all(tree: Tree, alpha: float) -> None:
    bias, second = KNOWN[alpha]
    config = Config(d_model=7, num_heads=2, head_dim=3, alpha=alpha)
    zero = {name: 0 * x for name, x in weights_of(config).items()}
    inputs = {"query": normal(1, 3, 7), "bias": np.array(bias)}
    _, weights = tree(layer_of(tree, config, zero), inputs, return_weights=True)
    want = bounded(config, inputs, zero)["out1"]
    known = np.broadcast_to([[1.0, 0.0, 0.0], second, [1 / 3, 1 / 3, 1 / 3]], weights.shape)
    assert ratio(weights, want) <= 1
    assert ratio(known, want) <= 1
    assert not weights[..., 0, 1:].any() and not weights[..., 1, 2].any()


def test_between_softmax_and_sparsemax(tree: Tree) -> None:
    """Of steep scores over many keys more weights are exactly 0, the larger alpha; none of softmax's."""
    shares = []
    for alpha in (1, 1.25, 1.5, 2.0):
        config = Config(d_model=7, num_heads=2, head_dim=3, alpha=alpha, scale=3.0)
        _, weights = tree(layer_of(tree, config, weights_of(config)), {"query": normal(2, 31, 7)}, return_weights=True)
        assert (weights.max(-1) > 0).all()
        shares.append(np.mean(weights == 0))
    assert shares[0] == 0 < shares[1] < shares[2] < shares[3] and shares[3] > 1 / 2


def test_at_one_it_is_softmax(tree: Tree) -> None:
    config = Config(d_model=7, num_heads=2, head_dim=3, alpha=1.0, causal=True)
    other: Any = contract.get("mha").Config
    params, inputs = weights_of(config), {"query": normal(2, 5, 7)}
    plain = other(**{name: x for name, x in config.as_dict().items() if name != "alpha"})
    _, weights = tree(layer_of(tree, config, params), inputs, return_weights=True)
    assert ratio(weights, bounded(plain, inputs, params)["out1"]) <= 1
