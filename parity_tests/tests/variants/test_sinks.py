"""Attention sinks against scalar loops, PyTorch's softmax over one column more, and attention with a key of zeros."""

from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch

from attn_np import contract
from attn_np.contract import mha
from attn_np.contract.sinks import EXAMPLES, Config
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

# Scalar loops: exp(e) / (exp(sink) + sum exp(e)) ----------------------------------------------------------------------


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w: Any = {name: p.tolist() for name, p in params.items()}

    def weigh(h: int, scores: list[float | None]) -> list[float]:
        raised = [0.0 if x is None else exp(x) for x in scores]
        denominator = exp(w["sinks"][h] if "sinks" in w else 0.0) + sum(raised)
        return [e / denominator for e in raised]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_off_by_one_is_a_key_of_zeros(tree: Tree, causal: bool) -> None:
    """Outputs, weights and gradients of `mha` with one more key, which stands first and which everybody sees."""
    fields: Any = {"d_model": 7, "num_heads": 3, "head_dim": 5, "key_dim": 11, "use_bias": False, "causal": causal}
    config, plain = Config(sink="zero", **fields), mha.Config(**fields)
    w, x, words = weights_of(config), normal(2, 4, 7), normal(2, 6, 11)
    mask = np.random.default_rng(1).random((2, 3, 4, 6)) < 0.6
    mask[1, 0, 2] = False
    inputs = {"query": x, "key": words, "mask": mask}
    longer = {"query": x, "key": np.concatenate([0 * words[:, :1], words], axis=1)}
    longer["mask"] = np.concatenate([np.ones((2, 3, 4, 1), bool), mask], axis=-1)
    want = bounded(plain, longer, w)
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"][..., 1:]) <= 1
    got = tree.gradients(layer, inputs, cotangent(y.shape))
    assert ratio(got.pop("dkey"), want["dkey"][:, 1:]) <= 1
    for name, grad in got.items():
        assert ratio(grad, want[name]) <= 1, name


def test_a_sink_of_minus_infinity_is_multi_head_attention(tree: Tree) -> None:
    config = Config(d_model=7, num_heads=3, head_dim=5, dropout=0.25, softcap=1.5)
    fields = {name: getattr(config, name) for name in mha.Config.fields() if hasattr(config, name)}
    w = weights_of(config)
    mask = np.random.default_rng(1).random((2, 3, 4, 4)) < 0.6
    mask[1, :, 2] = False
    inputs = {"query": normal(2, 4, 7), "mask": mask, "keep": np.random.default_rng(2).random((2, 3, 4, 4)) < 0.75}
    plain = {name: x for name, x in w.items() if name != "sinks"}
    want = bounded(mha.Config(**fields), inputs, plain)
    layer = layer_of(tree, config, w | {"sinks": np.full(3, -np.inf)})
    y, weights = tree(layer, inputs, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"]) <= 1
    grads = tree.gradients(layer, inputs, cotangent(y.shape))
    assert not np.any(grads["dsinks"])
    assert ratio(grads["dw_v"], want["dw_v"]) <= 1


def test_torch_softmax_over_one_column_more() -> None:
    """Forward and every gradient, that of the sinks too, with PyTorch's own softmax."""
    config = Config(d_model=7, num_heads=3, head_dim=5, use_bias=False)
    w, x = weights_of(config), normal(2, 6, 7)
    bias = normal(2, 3, 6, 6)
    leaves = {n: torch.from_numpy(p).requires_grad_() for n, p in (w | {"query": x, "bias": bias}).items()}
    q, k, v = (torch.einsum("btd,dhk->bhtk", leaves["query"], leaves[f"w_{n}"]) for n in "qkv")
    scores = q @ k.transpose(-1, -2) * 5**-0.5 + leaves["bias"]
    column = leaves["sinks"][:, None, None].expand(2, 3, 6, 1)
    weights = torch.softmax(torch.cat([column, scores], -1), -1)[..., 1:]
    y = torch.einsum("bhtv,hvd->btd", weights @ v, leaves["w_o"])
    want = bounded(config, {"query": x, "bias": bias}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


@pytest.mark.parametrize("sink", ["learned", "zero"])
def test_what_the_keys_do_not_get_the_sink_has(tree: Tree, sink: str) -> None:
    """With n scores of 0 each key weighs 1/(n + exp(z)), that is 1/(n + 2) for z = log 2 and 1/(n + 1) for z = 0."""
    config = Config(d_model=6, num_heads=2, use_bias=False, sink=sink)
    w = {name: 0 * x for name, x in weights_of(config).items()}
    extra = 2 if sink == "learned" else 1
    if sink == "learned":
        w["sinks"] += np.log(2.0)
    want = bounded(config, {"query": normal(2, 5, 6)}, w)["out1"]
    _, weights = tree(layer_of(tree, config, w), {"query": normal(2, 5, 6)}, return_weights=True)
    assert ratio(np.full(weights.shape, 1 / (5 + extra)), want) <= 1
    assert ratio(weights, want) <= 1


# Fields ---------------------------------------------------------------------------------------------------------------


def test_off_by_one_is_a_preset(tree: Tree) -> None:
    layer = tree.package.build("off_by_one", d_model=6, num_heads=2)
    assert layer.config == Config(d_model=6, num_heads=2, sink="zero")
    assert "sinks" not in layer.params()
    assert "zero sink" in contract.presets()["off_by_one"][1].idea


def test_an_unknown_sink_is_refused(tree: Tree) -> None:
    with pytest.raises(ValueError, match=r"sinks: expected sink to be one of learned, zero, got 'one'; set sink="):
        tree.package.build("sinks", d_model=6, num_heads=2, sink="one")


def test_a_head_of_its_own_sink(tree: Tree) -> None:
    """Another sink changes the weights of its head alone."""
    config = replace(EXAMPLES["learned"], window=None)
    w, inputs = weights_of(config), {"query": normal(2, 4, 5)}
    changed = w | {"sinks": w["sinks"] + np.array([0.0, 1.0, 0.0])}
    (_, before), (_, after) = (tree(layer_of(tree, config, p), inputs, return_weights=True) for p in (w, changed))
    assert np.array_equal(before[:, ::2], after[:, ::2])
    assert np.all(after[:, 1] <= before[:, 1])
    assert np.any(after[:, 1] < before[:, 1])
