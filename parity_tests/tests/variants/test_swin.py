"""Swin attention against scalar loops, windows drawn by hand, and multi-head attention with a bias."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.swin import Config
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

# Scalar loops, from equation 4 and figure 4 of the paper --------------------------------------------------------------


def window(config: Config, t: int) -> tuple[int, int]:
    """The window of a position: those at the edges of the grid are smaller where the windows are shifted."""
    row, column = ((n + config.window_size - config.shift) // config.window_size for n in divmod(t, config.width))
    return row, column


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    x, w = inputs["query"], {name: p.tolist() for name, p in params.items()}
    b, t, _ = x.shape
    options, side = SimpleNamespace(causal=False, dropout=0.0), 2 * config.window_size - 1
    _, rows = each_row(SimpleNamespace(), {"keep": np.array(True)}, (x,), (b, config.num_heads, t, t))

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        if window(config, i) != window(config, j):
            return -inf
        places = zip(divmod(i, config.width), divmod(j, config.width), strict=True)
        down, right = (n - m + config.window_size - 1 for n, m in places)
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) + w["w_bias"][down * side + right][h]

    return stacked([heads_by_hand(options, w, row, score)[:1] for row in rows], "y")


# Who sees whom --------------------------------------------------------------------------------------------------------

WINDOWS: dict[str, tuple[dict[str, Any], str]] = {
    "windows": ({"height": 4, "width": 4, "window_size": 2}, "aabb aabb ccdd ccdd"),
    "shifted": ({"height": 4, "width": 4, "window_size": 2, "shift": 1}, "abbc deef deef ghhi"),
    "one row": ({"height": 2, "width": 6, "window_size": 2, "shift": 1}, "abbccd effggh"),
    "by two": ({"height": 3, "width": 6, "window_size": 3, "shift": 2}, "aabbbc aabbbc ddeeef"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_position_reaches_those_of_its_window(tree: Tree, name: str) -> None:
    """The output at a place depends on the inputs of its own letter, and on no others."""
    fields, drawn = WINDOWS[name]
    letters = np.array(list(drawn.replace(" ", "")))
    config = Config(d_model=6, num_heads=2, **fields)
    layer, x = layer_of(tree, config, weights_of(config)), np.random.default_rng(0).normal(size=(2, len(letters), 6))
    before = tree(layer, {"query": x})[0]
    for place in range(len(letters)):
        other = x.copy()
        other[:, place] += 1.0
        changed = (tree(layer, {"query": other})[0] != before).any(-1)
        assert np.array_equal(changed, np.broadcast_to(letters == letters[place], changed.shape)), place


@pytest.mark.parametrize("shift", [0, 1])
def test_it_is_multi_head_attention_with_a_mask_and_a_bias(tree: Tree, shift: int) -> None:
    """Outputs and gradients of a grid of 4 x 2 in windows of 2 x 2; the table's gradient sums that of the bias."""
    config = Config(d_model=6, num_heads=2, height=4, width=2, window_size=2, shift=shift)
    whole = mha.Config(d_model=6, num_heads=2)
    w, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 8, 6))
    places = np.array([window(config, i) for i in range(8)])
    rows, columns = (n[:, None] - n + 1 for n in np.divmod(np.arange(8), 2))
    index = np.where((abs(rows - 1) < 2), rows * 3 + columns, 0)
    inputs = {"query": x, "mask": (places[:, None] == places).all(-1), "bias": w["w_bias"][index].transpose(2, 0, 1)}
    want = bounded(whole, inputs, {name: p for name, p in w.items() if name != "w_bias"})
    layer = layer_of(tree, config, w)
    got = {"y": tree(layer, {"query": x})[0]} | tree.gradients(layer, {"query": x}, cotangent((2, 8, 6)))
    table = np.zeros_like(w["w_bias"])
    np.add.at(table, index, np.where(inputs["mask"], want["dbias"].v, 0.0).transpose(1, 2, 0))
    loose = np.zeros_like(table)
    np.add.at(loose, index, want["dbias"].b.transpose(1, 2, 0))
    assert np.all(np.abs(got.pop("dw_bias") - table) <= loose)
    for name, value in got.items():
        # The gradient of the keys' bias is 0 but for rounding: the bound itself is asked, as no bound is small to it.
        limit = want[name]
        assert np.all(np.abs(value - limit.v) <= limit.b) if name == "db_k" else ratio(value, limit) <= 1, name


def test_fields_that_cannot_be(tree: Tree) -> None:
    sizes = {"d_model": 6, "num_heads": 2, "height": 4, "width": 6, "window_size": 2}
    for name, value, words in (
        ("shift", 2, "shift to be an integer from 0 to 1, got 2"),
        ("width", 5, "height and width that windows of 2 fill, got 4 x 5"),
        ("window_size", 0, "window_size to be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=f"swin: expected {words}"):
            tree.package.build("swin", **sizes | {name: value})
    with pytest.raises(ValueError, match=r"swin: expected query of shape \(b, t=24, d=6\), got \(1, 23, 6\)"):
        tree(tree.package.build("swin", **sizes, dtype="float64"), {"query": np.zeros((1, 23, 6))})
