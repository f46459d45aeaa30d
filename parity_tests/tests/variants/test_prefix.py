"""Prefix attention against scalar loops, patterns drawn by hand, and multi-head attention at both its ends."""

from math import inf, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.prefix import EXAMPLES, Config
from parity_tests.judge.cases import CALLS, Case
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    disagreement,
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


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_scalar_loops(example: str, call: str) -> None:
    assert not disagreement(witness, Case("prefix", example, call, "float64"))


# Who sees whom --------------------------------------------------------------------------------------------------------

PATTERNS = {
    "inside": ({}, [3, 1], ("xxx.. xxx.. xxx.. xxxx. xxxxx", "x.... xx... xxx.. xxxx. xxxxx")),
    "ends": ({}, [0, 4], ("x... xx.. xxx. xxxx", "xxxx xxxx xxxx xxxx")),
    "beyond": ({}, [9, 2], ("xxx xxx xxx", "xx. xx. xxx")),
}


def drawn(name: str) -> tuple[Config, np.ndarray, Arrays]:
    """A config, a pattern for each batch row, and words."""
    fields, numbers, rows = PATTERNS[name]
    want = np.array([[[place == "x" for place in line] for line in text.split()] for text in rows])
    words = np.random.default_rng(0).normal(size=(*want.shape[:2], 6))
    return Config(d_model=6, num_heads=2, **fields), want[:, None], {"query": words, "prefix": np.array(numbers)}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_pattern(tree: Tree, name: str) -> None:
    """Weights are not 0 exactly where there is an x."""
    config, want, inputs = drawn(name)
    _, weights = tree(layer_of(tree, config, weights_of(config)), inputs, return_weights=True)
    assert np.array_equal(weights != 0, np.broadcast_to(want, weights.shape))


@pytest.mark.parametrize("name", PATTERNS)
def test_it_is_multi_head_attention_under_a_mask(tree: Tree, name: str) -> None:
    """Outputs and gradients, beside a mask of the caller's own."""
    config, pattern, inputs = drawn(name)
    whole, w, t = mha.Config(d_model=6, num_heads=2), weights_of(config), pattern.shape[-1]
    inputs["mask"] = np.random.default_rng(1).random((2, 2, t, t)) < 0.75
    layer = layer_of(tree, config, w)
    want = bounded(whole, {"query": inputs["query"], "mask": inputs["mask"] & pattern}, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, t, 6)))
    for name, x in got.items():
        # The gradient of the keys' bias is 0 but for rounding: the bound itself is asked, as no bound is small to it.
        assert np.all(np.abs(x - want[name].v) <= want[name].b) if name == "db_k" else ratio(x, want[name]) <= 1, name


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
