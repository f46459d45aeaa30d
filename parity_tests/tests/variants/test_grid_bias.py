"""Relative position biases on a grid against scalar loops, a table drawn by hand, multi-head attention and Swin's."""

import re
from dataclasses import replace
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_np.contract import mha, swin
from attn_np.contract.grid_bias import EXAMPLES, Config
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

# Scalar loops, from the table of BEiT's code --------------------------------------------------------------------------


def table_row(config: Config, i: int, j: int) -> int:
    """The row for a query and a key: all offsets of rows and columns are counted until theirs comes."""
    height, width, first = config.height, config.width, config.prefix_tokens
    row = 0
    for down in range(1 - height, height):
        for right in range(1 - width, width):
            if min(i, j) >= first:
                (y, x), (key_y, key_x) = divmod(i - first, width), divmod(j - first, width)
                if (y - key_y, x - key_x) == (down, right):
                    return row
            row += 1
    return row + (2 if max(i, j) < first else 1 if i >= first else 0)


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    words, w = inputs["query"], {name: p.tolist() for name, p in params.items()}
    b, t, _ = words.shape
    config, rows = each_row(config, inputs, (words,), (b, config.num_heads, t, t))
    options = SimpleNamespace(causal=False, dropout=config.dropout)

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) + w["w_bias"][table_row(config, i, j)][h]

    return stacked([heads_by_hand(options, w, row, score) for row in rows], "y", "out1")


# What is added --------------------------------------------------------------------------------------------------------

# A class token and a grid of two rows and three columns. Letters are the rows of the table, in its order.
DRAWN = """
    r p p p p p p
    q h g f c b a
    q i h g d c b
    q j i h e d c
    q m l k h g f
    q n m l i h g
    q o n m j i h
"""


def test_the_table_is_read_as_drawn(tree: Tree) -> None:
    """With no products, the logarithm of a weight is the table's number less that of its row's sum."""
    config = Config(d_model=4, num_heads=1, height=2, width=3, use_bias=False)
    letters = [line.split() for line in DRAWN.split("\n") if line.strip()]
    assert config.sizes()["x"] == len({letter for line in letters for letter in line}) == 18
    w = {name: np.zeros(shape) for name, shape in config.shapes().items()}
    w["w_bias"] = np.log(np.arange(1.0, 19.0))[:, None]
    inputs = {"query": np.ones((1, 7, 4))}
    _, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
    raised = np.array([[ord(letter) - ord("a") + 1.0 for letter in line] for line in letters])
    want = bounded(config, inputs, w)["out1"]
    assert ratio(weights, want) <= 1
    assert ratio((raised / raised.sum(-1, keepdims=True))[None, None], want) <= 1


@pytest.mark.parametrize("prefix_tokens", [0, 1, 2])
def test_all_tokens_before_the_grid_are_alike(tree: Tree, prefix_tokens: int) -> None:
    """Those of one kind read one number of the table, which has three more with the first of them."""
    config = Config(d_model=4, num_heads=2, height=2, width=2, prefix_tokens=prefix_tokens)
    assert config.sizes()["x"] == (12 if prefix_tokens else 9)
    _, tape = tree.trace(layer_of(tree, config, weights_of(config)), {"query": np.zeros((1, prefix_tokens + 4, 4))})
    index = tape["relative_index"]
    assert index[prefix_tokens:, prefix_tokens:].tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    assert (index[:prefix_tokens, prefix_tokens:] == 9).all()
    assert (index[prefix_tokens:, :prefix_tokens] == 10).all()
    assert (index[:prefix_tokens, :prefix_tokens] == 11).all()


# Other layers with the same numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("example", EXAMPLES)
def test_multi_head_attention_with_the_biases_given(tree: Tree, example: str, fast: bool) -> None:
    """Outputs and gradients; the table's gradient is the bias's, added up over the pairs that read a row.

    A call without dropout takes the fast path.
    """
    config = EXAMPLES[example]
    rng, w, t = np.random.default_rng(0), weights_of(config), config.sizes()["t"]
    inputs = {"query": rng.normal(size=(2, t, config.d_model)), "mask": rng.random((2, 1, 1, t)) < 0.7}
    inputs |= {"bias": rng.normal(size=(2, 1, 1, t))}
    if not fast:
        inputs |= {"keep": rng.random((2, config.num_heads, t, t)) < 0.7}
    own = {name: value for name, value in config.as_dict().items() if name in mha.Config.fields()}
    rows = np.array([[table_row(config, i, j) for j in range(t)] for i in range(t)])
    added = np.moveaxis(w["w_bias"][rows], -1, 0) + inputs["bias"]
    rest = {name: x for name, x in w.items() if name != "w_bias"}
    rest |= {"b_k": np.zeros_like(w["b_q"])} if config.use_bias else {}
    want = bounded(mha.Config(**own), inputs | {"bias": added}, rest)
    want.pop("db_k", None)
    want.pop("out1")
    hot = (rows[..., None] == np.arange(config.sizes()["x"])).astype(np.float64)
    spread = want.pop("dbias")
    want["dbias"] = np.sum(spread, axis=(1, 2)).reshape(2, 1, 1, t)
    want["dw_bias"] = np.sum(spread.reshape(*spread.shape, 1) * hot, axis=(0, 2, 3)).swapaxes(0, 1)
    layer = layer_of(tree, config, w)
    y = tree(layer, inputs)[0]
    got = {"y": y} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_without_a_class_token_it_is_swin_in_one_window(tree: Tree) -> None:
    """Outputs and gradients, with keys of Swin whose bias is 0."""
    config = Config(d_model=6, num_heads=2, height=3, width=4, prefix_tokens=0)
    window = swin.Config(d_model=6, num_heads=2, height=3, width=4, window_size=(3, 4))
    w, inputs = weights_of(config), {"query": np.random.default_rng(1).normal(size=(2, 12, 6))}
    want = bounded(window, inputs, w | {"b_k": np.zeros((2, 3))})
    want.pop("db_k")
    want.pop("out1")
    layer = layer_of(tree, config, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 12, 6)))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_a_hidden_patch_may_hold_anything(tree: Tree) -> None:
    """No output of another position depends on it, and it gets no gradient as a key."""
    config = Config(d_model=6, num_heads=2, height=2, width=3)
    layer, x = layer_of(tree, config, weights_of(config)), np.random.default_rng(2).normal(size=(1, 7, 6))
    mask = np.ones((1, 1, 1, 7), bool)
    mask[..., 4] = False
    other = x.copy()
    other[:, 4] = 1e3
    first, second = (tree(layer, {"query": query, "mask": mask})[0] for query in (x, other))
    assert np.array_equal(np.delete(first, 4, 1), np.delete(second, 4, 1))
    assert not np.array_equal(first[:, 4], second[:, 4])


# Fields ---------------------------------------------------------------------------------------------------------------


def test_fields_that_cannot_be(tree: Tree) -> None:
    sizes: dict[str, Any] = {"d_model": 6, "num_heads": 2, "height": 2, "width": 3}
    for value in (-1, 1.0, True):
        words = f"grid_bias: expected prefix_tokens to be an integer from 0, got {value!r}; set prefix_tokens="
        with pytest.raises(ValueError, match=re.escape(words)):
            tree.package.build("grid_bias", **sizes, prefix_tokens=value)
    with pytest.raises(ValueError, match=r"grid_bias: expected query of shape \(b, t=7, d=6\), got \(1, 6, 6\)"):
        tree(tree.package.build("grid_bias", **sizes, dtype="float64"), {"query": np.zeros((1, 6, 6))})
    assert replace(Config(**sizes), prefix_tokens=0).shapes()["w_bias"] == (15, 2)
