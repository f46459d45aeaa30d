"""Variants that hide keys by position: what they show, pair by pair, and that under its mask they are `mha`."""

from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Config, mha
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of

# By variant and name: fields, the keys that each query sees (for each sequence, where they differ), and other inputs.
PATTERNS: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "bigbird, window": (
        {"block_size": 2, "global_blocks": 0, "random_blocks": 0},
        ("xxxx... xxxx... xxxxxx. xxxxxx. ..xxxxx ..xxxxx ....xxx",),
        {},
    ),
    "bigbird, global": (
        {"block_size": 1, "near_blocks": 0, "random_blocks": 0},
        ("xxxxx xx..x x.x.x x..xx xxxxx",),
        {},
    ),
    "bigbird, random": (
        {"block_size": 1, "near_blocks": 0, "global_blocks": 0, "random_blocks": 9},
        ("xxxx xxxx xxxx xxxx",),
        {},
    ),
    # The first states over 2^33 are 2, 0, 1 and 1 modulo 3: of three others these.
    "bigbird, drawn": (
        {"block_size": 1, "near_blocks": 0, "global_blocks": 0, "random_blocks": 1},
        ("x..x xx.. .xx. .x.x",),
        {},
    ),
    "chunked, both": ({"chunk_size": 3}, ("xxx.... xxx.... xxx.... ...xxx. ...xxx. ...xxx. ......x",), {}),
    "chunked, causal": ({"chunk_size": 2, "causal": True}, ("x.... xx... ..x.. ..xx. ....x",), {}),
    "chunked, single": ({"chunk_size": 1}, ("x.. .x. ..x",), {}),
    "chunked, whole": ({"chunk_size": 7}, ("xxx xxx xxx",), {}),
    "dilated, both": ({"dilation": 2, "steps": (1, 1)}, ("x.x... .x.x.. x.x.x. .x.x.x ..x.x. ...x.x",), {}),
    "dilated, causal": (
        {"dilation": 2, "steps": (1, 1), "causal": True},
        ("x..... .x.... x.x... .x.x.. ..x.x. ...x.x",),
        {},
    ),
    "dilated, strided": (
        {"dilation": 3, "causal": True},
        ("x...... .x..... ..x.... x..x... .x..x.. ..x..x. x..x..x",),
        {},
    ),
    "dilated, left": ({"dilation": 2, "steps": (None, 0)}, ("x.... .x... x.x.. .x.x. x.x.x",), {}),
    "dilated, itself": ({"dilation": 2, "steps": (0, 0)}, ("x.. .x. ..x",), {}),
    "dilated, neighbours": ({"dilation": 1, "steps": (1, 0)}, ("x.. xx. .xx",), {}),
    "longformer, window": (
        {"half_window": 1},
        ("xx... xxx.. .xxx. ..xxx ...xx",),
        {"global_mask": [[False, False, False, False, False]]},
    ),
    "longformer, first": (
        {"half_window": 1},
        ("xxxxxx xxx... xxxx.. x.xxx. x..xxx x...xx",),
        {"global_mask": [[True, False, False, False, False, False]]},
    ),
    "longformer, wide": (
        {"half_window": 2},
        ("xxxx.. xxxx.. xxxxx. xxxxxx ..xxxx ...xxx",),
        {"global_mask": [[False, False, False, True, False, False]]},
    ),
    "prefix, inside": ({}, ("xxx.. xxx.. xxx.. xxxx. xxxxx", "x.... xx... xxx.. xxxx. xxxxx"), {"prefix": [3, 1]}),
    "prefix, ends": ({}, ("x... xx.. xxx. xxxx", "xxxx xxxx xxxx xxxx"), {"prefix": [0, 4]}),
    "prefix, beyond": ({}, ("xxx xxx xxx", "xx. xx. xxx"), {"prefix": [9, 2]}),
    "segments, both": (
        {},
        ("xx... xx... ..xxx ..xxx ..xxx", "x...x .xxx. .xxx. .xxx. x...x"),
        {"segments": [[0, 0, 1, 1, 1], [7, 3, 3, 3, 7]]},
    ),
    "segments, causal": (
        {"causal": True},
        ("x... xx.. xxx. ...x", "x... .x.. x.x. .x.x"),
        {"segments": [[2, 2, 2, 5], [1, 0, 1, 0]]},
    ),
}


def drawn(name: str) -> tuple[Config, np.ndarray, Arrays]:
    """A config, its pattern `b 1 t t`, and words."""
    fields, rows, more = PATTERNS[name]
    config = contract.config(name.partition(",")[0], d_model=6, num_heads=2, **fields)
    pattern = np.array([[[place == "x" for place in line] for line in text.split()] for text in rows])
    words = np.random.default_rng(0).normal(size=(2, pattern.shape[-1], 6))
    return config, pattern[:, None], {"query": words} | {name: np.array(x) for name, x in more.items()}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_pattern(tree: Tree, name: str) -> None:
    """Weights are not 0 exactly where there is an x."""
    config, pattern, inputs = drawn(name)
    _, weights = tree(layer_of(tree, config, weights_of(config)), inputs, return_weights=True)
    assert np.array_equal(weights != 0, np.broadcast_to(pattern, weights.shape))


@pytest.mark.parametrize("name", [name for name in PATTERNS if not name.startswith("longformer")])
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
