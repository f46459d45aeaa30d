"""Axial attention against scalar loops, what a position reaches, and two layers of multi-head attention."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.axial import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, heads_by_hand, layer_of, ratio, weights_of

# Scalar loops, from section 3.1 of the paper --------------------------------------------------------------------------


def line(config: Config, w: dict[str, Any], words: list[list[float]]) -> list[list[float]]:
    """Multi-head attention of the positions of one row or column."""
    n, h = len(words), config.num_heads
    everything = [[[True] * n] * n] * h, [[[0.0] * n] * n] * h, [[[True] * n] * n] * h

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        return scale * sum(a * b for a, b in zip(q, k, strict=True))

    return heads_by_hand(SimpleNamespace(causal=False, dropout=0.0), w, (words, *everything), score)[0]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    of = {
        axis: {name.removesuffix(axis): p.tolist() for name, p in params.items() if name.endswith(axis)}
        for axis in ("_rows", "_columns")
    }
    found = []
    for x in inputs["query"].tolist():
        rows = [line(config, of["_rows"], x[i : i + config.width]) for i in range(0, len(x), config.width)]
        columns = [line(config, of["_columns"], [row[j] for row in rows]) for j in range(config.width)]
        found.append([columns[j][i] for i in range(config.height) for j in range(config.width)])
    return {"y": np.array(found)}


# Identities -----------------------------------------------------------------------------------------------------------


def test_one_row_is_two_layers(tree: Tree) -> None:
    """In a grid of one row a column is one position, which sees itself: the projections of its value remain."""
    config, whole = Config(d_model=6, num_heads=2, height=1, width=7), mha.Config(d_model=6, num_heads=2)
    w, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 6))
    rows = bounded(whole, {"query": x}, {name: w[f"{name}_rows"] for name in whole.shapes()})["y"]
    single = mha.Config(d_model=6, num_heads=2, window=(0, 0))
    own = {name: w[f"{name}_columns"] for name in single.shapes()}
    want, moved = (bounded(single, {"query": y}, own)["y"] for y in (rows.v, rows.v + rows.b))
    # What the rows may err reaches y through one matrix, whose entries add up in size.
    matrix = np.einsum("dhv,hve->de", np.abs(own["w_v"]), np.abs(own["w_o"]))
    limit = ErrArray(want.v, want.b + moved.b + rows.b @ matrix)
    assert ratio(tree(layer_of(tree, config, w), {"query": x})[0], limit) <= 1


def test_every_position_reaches_every_other(tree: Tree) -> None:
    config = Config(d_model=6, num_heads=2, height=3, width=4)
    layer, x = layer_of(tree, config, weights_of(config)), np.random.default_rng(0).normal(size=(2, 12, 6))
    before = tree(layer, {"query": x})[0]
    for place in range(12):
        other = x.copy()
        other[:, place] += 1.0
        assert (tree(layer, {"query": other})[0] != before).any(-1).all(), place


def test_the_columns_come_second(tree: Tree) -> None:
    """Without values along the columns nothing is left but the bias after them."""
    config = Config(d_model=6, num_heads=2, height=3, width=4)
    w, x = weights_of(config), np.random.default_rng(2).normal(size=(2, 12, 6))
    silent = {name: np.zeros_like(w[name]) for name in ("w_v_columns", "b_v_columns")}
    y = tree(layer_of(tree, config, w | silent), {"query": x})[0]
    assert np.array_equal(y, np.broadcast_to(w["b_o_columns"], y.shape))


def test_a_grid_of_another_size_is_refused(tree: Tree) -> None:
    layer = tree.package.build("axial", d_model=6, num_heads=2, height=3, width=4, dtype="float64")
    with pytest.raises(ValueError, match=r"axial: expected query of shape \(b, t=12, d=6\), got \(1, 11, 6\)"):
        tree(layer, {"query": np.zeros((1, 11, 6))})
    with pytest.raises(ValueError, match="axial: expected height to be an integer of at least 1, got 0"):
        tree.package.build("axial", d_model=6, num_heads=2, height=0, width=4)
