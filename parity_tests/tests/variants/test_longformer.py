"""Longformer attention against scalar loops, patterns drawn by hand, and multi-head attention at both its ends."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.longformer import Config
from parity_tests.bounds.error_array import ErrArray
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

# Scalar loops, from section 3.1 of the paper --------------------------------------------------------------------------


def sees(config: Config, wide: list[bool], i: int, j: int) -> bool:
    """Query i has key j in its window, or one of the two is global."""
    return wide[i] or wide[j] or abs(i - j) <= config.half_window


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head: what the global queries find, and what the others find."""
    x = inputs["query"]
    b, t, _ = x.shape
    flags = np.broadcast_to(inputs.get("global_mask", False), (b, t))
    config, rows = each_row(config, inputs, (x, flags), (b, config.num_heads, t, t))
    local = {name: p.tolist() for name, p in params.items()}
    across = {name: local.get(f"{name}_global") for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")}
    across = {name: p for name, p in across.items() if p is not None} | {"w_o": local["w_o"]}
    found, options = [], SimpleNamespace(causal=False, dropout=config.dropout)
    for words, wide, *given in rows:
        parts = []
        for way, w in ((False, local), (True, across)):

            def score(h: int, i: int, j: int, q: Any, k: Any, wide: Any = wide, way: bool = way) -> float:
                scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
                shown = wide[i] == way and sees(config, wide, i, j)
                return scale * sum(a * b for a, b in zip(q, k, strict=True)) if shown else -inf

            parts.append([np.array(part) for part in heads_by_hand(options, w, (words, *given), score)])
        found.append((parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]))
    return stacked(found, "y", "out1")


# Who sees whom --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_at_both_ends_it_is_multi_head_attention(tree: Tree, whole: bool) -> None:
    """Without global positions under a window; with global positions alone, by the global projections."""
    config, x = Config(d_model=6, num_heads=2, half_window=2), np.random.default_rng(2).normal(size=(2, 7, 6))
    w, other = weights_of(config), mha.Config(d_model=6, num_heads=2, window=None if whole else (2, 2))
    own = {name: w[f"{name}_global"] if whole and "o" not in name else w[name] for name in other.shapes()}
    layer, inputs = layer_of(tree, config, w), {"query": x, "global_mask": np.full((2, 7), whole)}
    want, dy = bounded(other, {"query": x}, own), cotangent((2, 7, 6))
    limits = bounded(config, inputs, w)
    got = {"y": tree(layer, inputs)[0], "dquery": tree.gradients(layer, inputs, dy)["dquery"]}
    for name, y in got.items():
        assert ratio(y, ErrArray(want[name].v, want[name].b + limits[name].b)) <= 1, name


def test_it_does_not_decode(tree: Tree) -> None:
    with pytest.raises(ValueError, match="longformer: expected a layer that decodes, got a window to both sides"):
        tree.build(Config(d_model=6, num_heads=2, half_window=1)).init_cache(2, 5)
