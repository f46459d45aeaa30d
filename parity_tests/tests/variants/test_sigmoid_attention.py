"""Sigmoid attention against scalar loops, PyTorch's sigmoid, and known numbers."""

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract.sigmoid_attention import Config
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    of_heads,
    ratio,
    stacked,
    torch_gradients,
    weights_of,
)

# Scalar loops: 1 / (1 + exp(-(e + b))) --------------------------------------------------------------------------------


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w: Any = {name: p.tolist() for name, p in params.items()}

    def weigh(h: int, scores: list[float | None]) -> list[float]:
        n = sum(1 for x in scores if x is not None)
        b = config.score_offset if config.score_offset is not None else -log(max(n, 1))
        return [0.0 if x is None else 1 / (1 + exp(-(x + b))) for x in scores]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh) for row in rows], "y", "out1")


# PyTorch's sigmoid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score_offset", [None, 0.0, -2.5])
def test_torch_sigmoid(score_offset: float | None) -> None:
    """Forward and every gradient, with a mask and a bias."""
    config = Config(d_model=7, num_heads=3, head_dim=5, score_offset=score_offset)
    w, x, bias = weights_of(config), normal(2, 6, 7), normal(2, 3, 6, 6)
    mask = np.random.default_rng(1).random((2, 3, 6, 6)) < 0.6
    mask[1, 2, 3] = False
    leaves = {n: torch.from_numpy(p).requires_grad_() for n, p in (w | {"query": x, "bias": bias}).items()}
    q, k, v = (
        (torch.einsum("btd,dhk->bthk", leaves["query"], leaves[f"w_{n}"]) + leaves[f"b_{n}"]).transpose(1, 2)
        for n in "qkv"
    )
    seen = torch.from_numpy(mask)
    shift = -torch.log(seen.sum(-1, keepdim=True).clamp(min=1).double()) if score_offset is None else score_offset
    weights = torch.sigmoid(q @ k.transpose(-1, -2) * 5**-0.5 + leaves["bias"] + shift) * seen
    y = torch.einsum("bhtv,hvd->btd", weights @ v, leaves["w_o"]) + leaves["b_o"]
    want = bounded(config, {"query": x, "mask": mask, "bias": bias}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights.detach(), want["out1"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# Known numbers --------------------------------------------------------------------------------------------------------


def test_indifferent_keys_weigh_one_of_n_and_one(tree: Tree) -> None:
    """Scores of 0: sigmoid(-log n) = 1 / (1 + n) for the n keys that a query sees; an offset of 0 gives one half."""
    config = Config(d_model=7, num_heads=2, head_dim=3, causal=True)
    w, inputs = {name: 0 * x for name, x in weights_of(config).items()}, {"query": normal(2, 5, 7)}
    seen = np.tril(np.ones((5, 5)))
    known = np.broadcast_to(seen / (1 + seen.sum(-1, keepdims=True)), (2, 2, 5, 5))
    for c, numbers in ((config, known), (replace(config, score_offset=0.0), np.broadcast_to(0.5 * seen, known.shape))):
        want = bounded(c, inputs, w)["out1"]
        assert ratio(numbers, want) <= 1
        assert ratio(tree(layer_of(tree, c, w), inputs, return_weights=True)[1], want) <= 1


def test_a_key_weighs_what_it_weighs_alone(tree: Tree) -> None:
    """With a fixed score_offset other keys do not matter, to the bit of the weight."""
    config = Config(d_model=7, num_heads=2, head_dim=3, score_offset=-1.0)
    w, x = weights_of(config), normal(2, 5, 7)
    layer = layer_of(tree, config, w)
    mask = np.zeros((2, 1, 5, 5), bool)
    mask[..., 3] = True
    _, whole = tree(layer, {"query": x}, return_weights=True)
    y, alone = tree(layer, {"query": x, "mask": mask}, return_weights=True)
    assert np.array_equal(alone[..., 3], whole[..., 3])
    assert not np.any(np.delete(alone, 3, axis=-1))
    assert np.isfinite(y).all()


def test_scores_far_from_zero(tree: Tree) -> None:
    """A bias of infinity gives the weight 1, one of -infinity hides; neither gives a NaN, in gradients neither."""
    config = Config(d_model=7, num_heads=2, head_dim=3)
    layer, bias = layer_of(tree, config, weights_of(config)), np.zeros((2, 2, 5, 5))
    bias[..., 0], bias[..., 1], bias[..., 2], bias[..., 3] = np.inf, -np.inf, 1e5, -1e5
    inputs = {"query": normal(2, 5, 7), "bias": bias}
    y, weights = tree(layer, inputs, return_weights=True)
    assert np.array_equal(weights[..., :4], np.broadcast_to([1.0, 0.0, 1.0, 0.0], (2, 2, 5, 4)))
    assert all(np.isfinite(g).all() for g in tree.gradients(layer, inputs, cotangent(y.shape)).values())


def test_an_infinite_offset_is_refused(tree: Tree) -> None:
    with pytest.raises(
        ValueError,
        match="sigmoid_attention: expected score_offset to be a finite int or float, got inf; set score_offset=",
    ):
        tree.package.build("sigmoid_attention", d_model=6, num_heads=2, score_offset=float("inf"))
