"""Segmented attention against scalar loops, patterns drawn by hand, and every document by itself."""

from itertools import pairwise
from math import inf, sqrt

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.segments import EXAMPLES, Config
from parity_tests.bounds.error_array import ErrArray
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


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_scalar_loops(example: str, call: str) -> None:
    assert not disagreement(witness, Case("segments", example, call, "float64"))


# Who sees whom --------------------------------------------------------------------------------------------------------

PATTERNS = {
    "both": (
        {},
        [[0, 0, 1, 1, 1], [7, 3, 3, 3, 7]],
        ("xx... xx... ..xxx ..xxx ..xxx", "x...x .xxx. .xxx. .xxx. x...x"),
    ),
    "causal": ({"causal": True}, [[2, 2, 2, 5], [1, 0, 1, 0]], ("x... xx.. xxx. ...x", "x... .x.. x.x. .x.x")),
}


def drawn(name: str) -> tuple[Config, np.ndarray, Arrays]:
    """A config, a pattern for each batch row, and words."""
    fields, numbers, rows = PATTERNS[name]
    want = np.array([[[place == "x" for place in line] for line in text.split()] for text in rows])
    words = np.random.default_rng(0).normal(size=(*want.shape[:2], 6))
    return Config(d_model=6, num_heads=2, **fields), want[:, None], {"query": words, "segments": np.array(numbers)}


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
