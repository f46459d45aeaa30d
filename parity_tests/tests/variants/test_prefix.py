"""Prefix attention against scalar loops, patterns drawn by hand, and multi-head attention at both its ends."""

from math import inf, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.prefix import Config
from parity_tests.tests.inputs import Arrays, Tree
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


def sees(length: int, i: int, j: int) -> bool:
    """Key j stands in the prefix, or not behind query i."""
    return j < length or j <= i


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x, inputs["prefix"][:, None]), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    found = []
    for words, length, *given in rows:

        def score(h: int, i: int, j: int, q: list[float], k: list[float], length: list[int] = length) -> float:
            scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
            return scale * sum(a * b for a, b in zip(q, k, strict=True)) if sees(length[0], i, j) else -inf

        found.append(heads_by_hand(SimpleNamespace(causal=False, dropout=config.dropout), w, (words, *given), score))
    return stacked(found, "y", "out1")


# Who sees whom --------------------------------------------------------------------------------------------------------


def test_at_both_ends_it_is_multi_head_attention(tree: Tree) -> None:
    """Without a prefix it is causal, with the whole sequence as prefix everything is seen."""
    config, x = Config(d_model=6, num_heads=2), np.random.default_rng(2).normal(size=(2, 5, 6))
    w = weights_of(config)
    for length, causal in ((0, True), (5, False)):
        (y,) = tree(layer_of(tree, config, w), {"query": x, "prefix": np.full(2, length)})
        assert ratio(y, bounded(mha.Config(d_model=6, num_heads=2, causal=causal), {"query": x}, w)["y"]) <= 1


def test_it_does_not_decode(tree: Tree) -> None:
    with pytest.raises(ValueError, match="prefix: expected a layer that decodes, got a prefix whose positions see ahe"):
        tree.build(Config(d_model=6, num_heads=2)).init_cache(2, 5)


def test_a_prefix_is_one_integer_for_each_sequence(tree: Tree) -> None:
    layer, x = tree.build(Config(d_model=6, num_heads=2)), np.zeros((2, 3, 6))
    with pytest.raises(TypeError, match="prefix: expected prefix of an integer dtype, got bool"):
        tree(layer, {"query": x, "prefix": np.array([True, False])})
    with pytest.raises(ValueError, match=r"prefix: expected prefix of shape \(b=2,\), got \(3,\)"):
        tree(layer, {"query": x, "prefix": np.zeros(3, int)})
