"""ALiBi against scalar loops, slopes of the paper, and multi-head attention with the biases given by hand."""

from math import sqrt

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.alibi import Config
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

# Scalar loops, from section 3 of the paper ----------------------------------------------------------------------------

ROOT = sqrt(0.5)
# Those of the paper for 8 heads, and what its code gives for numbers that are no powers of two.
SLOPES = {
    1: [1 / 256],
    2: [1 / 16, 1 / 256],
    3: [1 / 16, 1 / 256, 1 / 4],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, ROOT, ROOT / 2, ROOT / 4, ROOT / 8],
}


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x, slopes = inputs["query"], SLOPES[config.num_heads]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        far = slopes[h] * abs(i - j) * (scale if config.scale_slopes else 1.0)
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) - far

    return stacked([heads_by_hand(config, w, row, score) for row in rows], "y", "out1")


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_the_papers(heads: int) -> None:
    assert list(Config(d_model=heads, num_heads=heads).slopes()) == SLOPES[heads]


@pytest.mark.parametrize("heads", [5, 7, 48, 100, 112])
def test_other_numbers_of_heads_fill_up_between_the_powers(heads: int) -> None:
    """All different, all of the sequence for the next higher power of two, and that of the lower one comes first."""
    found = Config(d_model=heads, num_heads=heads).slopes()
    lower = 2 ** (len(bin(heads)) - 3)
    assert len(set(found)) == heads
    assert set(found) < {2 ** (-8 * (h + 1) / (2 * lower)) for h in range(2 * lower)}
    assert found[:lower] == Config(d_model=lower, num_heads=lower).slopes()


# Multi-head attention with a bias -------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_multi_head_attention_with_the_biases_given(tree: Tree, causal: bool) -> None:
    """Outputs and gradients, beside another bias and a mask."""
    fields = {"d_model": 6, "num_heads": 3, "head_dim": 5, "causal": causal, "dropout": 0.5}
    config, rng, t = Config(**fields), np.random.default_rng(0), 7
    w, inputs = weights_of(config), {"query": rng.normal(size=(2, t, 6)), "bias": rng.normal(size=(3, 1, t))}
    inputs |= {"mask": rng.random((2, 1, t, t)) < 0.7, "keep": rng.random((2, 3, t, t)) < 0.5}
    far = np.abs(np.arange(t)[:, None] - np.arange(t))
    added = inputs["bias"] - np.array(SLOPES[3])[:, None, None] * far
    want = bounded(mha.Config(**fields), inputs | {"bias": added}, w)
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    want["dbias"] = np.sum(want["dbias"], axis=1, keepdims=True)
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_a_head_forgets_by_its_slope(tree: Tree) -> None:
    """All products 0: the weights of a query are exp(-slope distance), normalised."""
    config = Config(d_model=2, num_heads=2, use_bias=False)
    w = {name: np.zeros(shape) for name, shape in config.shapes().items()}
    _, weights = tree(layer_of(tree, config, w), {"query": np.ones((1, 5, 2))}, return_weights=True)
    want = bounded(config, {"query": np.ones((1, 5, 2))}, w)["out1"]
    assert ratio(weights, want) <= 1
    for h, slope in enumerate(SLOPES[2]):
        raised = np.exp(-slope * np.abs(np.arange(5)[:, None] - np.arange(5)))
        assert ratio(raised / raised.sum(-1, keepdims=True), want[0, h]) <= 1


def test_a_window_is_refused_in_words(tree: Tree) -> None:
    words = r"alibi: expected window to be a tuple \(left, right\) of ints from 0, got 3; say how many keys"
    with pytest.raises(ValueError, match=words):
        tree.package.build("alibi", d_model=6, num_heads=2, window=3)


def test_widths_must_fit(tree: Tree) -> None:
    with pytest.raises(ValueError, match="alibi: expected d_model divisible by num_heads, got d_model=7, num_heads=2"):
        tree.package.build("alibi", d_model=7, num_heads=2)
