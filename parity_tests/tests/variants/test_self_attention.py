"""Self-attention against scalar loops, PyTorch's own functions, and multi-head attention with one head."""

from dataclasses import replace
from math import exp, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from attn_np.contract import mha
from attn_np.contract.self_attention import Config
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    ratio,
    stacked,
    torch_gradients,
    weights_of,
)


def padding(lengths: list[int], t: int) -> np.ndarray:
    """(b, 1, t): the first positions of each row are words."""
    return (np.arange(t) < np.array(lengths)[:, None])[:, None]


# Scalar loops, from the formula for a single word ---------------------------------------------------------------------


def projected(x: list[float], w: list[list[float]], b: list[float] | None) -> list[float]:
    return [
        sum(a * row[k] for a, row in zip(x, w, strict=True)) + (0.0 if b is None else b[k]) for k in range(len(w[0]))
    ]


def loops(config: Config, w: Any, x: list[list[float]], mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row: each word asks every word."""
    t = len(x)
    left, right = config.window or (None, None)
    q, k, v = ([projected(word, w[f"w_{name}"], w.get(f"b_{name}")) for word in x] for name in "qkv")
    scale = 1 / sqrt(len(q[0])) if config.scale is None else config.scale
    y, weights = [], []
    for i in range(t):
        raised = []
        for j in range(t):
            hidden = not mask[i][j] or (config.causal and j > i)
            hidden = hidden or (left is not None and j < i - left) or (right is not None and j > i + right)
            score = scale * sum(a * b for a, b in zip(q[i], k[j], strict=True))
            if config.softcap is not None:
                score = config.softcap * tanh(score / config.softcap)
            raised.append(0.0 if hidden else exp(score + bias[i][j]))
        alpha = [e / sum(raised) if e else 0.0 for e in raised]
        used = [a / (1 - config.dropout) * kept for a, kept in zip(alpha, keep[i], strict=True)]
        context = [sum((a * word[c] for a, word in zip(used, v, strict=True)), 0.0) for c in range(len(v[0]))]
        y.append(projected(context, w["w_o"], w.get("b_o")) if config.use_output else context)
        weights.append(alpha)
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and weights."""
    x = inputs["query"]
    config, rows = each_row(config, inputs, (x,), (*x.shape[:2], x.shape[1]))
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_bias", [True, False])
def test_multi_head_attention_with_one_head(tree: Tree, use_bias: bool) -> None:
    """Outputs and gradients are those of `mha` when the head axis is dropped."""
    config = Config(
        d_model=7, head_dim=5, value_head_dim=3, causal=True, softcap=2.0, use_output=True, use_bias=use_bias
    )
    one = mha.Config(d_model=7, num_heads=1, head_dim=5, value_head_dim=3, causal=True, softcap=2.0, use_bias=use_bias)
    w = weights_of(config)
    inputs = {"query": normal(2, 11, 7), "mask": np.random.default_rng(0).random((2, 11, 11)) < 0.7}
    layer = layer_of(tree, config, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 11, 7)))
    headed = {name: x.reshape(one.shapes()[name]) for name, x in w.items()}
    want = bounded(one, inputs | {"mask": inputs["mask"][:, None]}, headed)
    for name, x in got.items():
        assert ratio(x.reshape(want[name].shape), want[name]) <= 1, name


def test_scaled_is_unscaled_with_smaller_queries(tree: Tree) -> None:
    """1/sqrt(4) is exactly 0.5: on the scores or on w_q and b_q it is the same number, to the bit."""
    config, x = Config(d_model=7, head_dim=4, value_head_dim=3), {"query": normal(2, 5, 7)}
    w = weights_of(config)
    halved = w | {"w_q": w["w_q"] / 2, "b_q": w["b_q"] / 2}
    (scaled,) = tree(layer_of(tree, config, w), x)
    (unscaled,) = tree(layer_of(tree, replace(config, scale=1.0), halved), x)
    assert np.array_equal(scaled, unscaled)


def test_without_order_but_for_the_words(tree: Tree) -> None:
    """Shuffled words give shuffled outputs."""
    config, x, order = Config(d_model=7, head_dim=3), normal(2, 5, 7), [3, 0, 4, 2, 1]
    w = weights_of(config)
    (y,) = tree(layer_of(tree, config, w), {"query": x[:, order]})
    assert ratio(y, bounded(config, {"query": x}, w)["y"][:, order]) <= 1


def test_one_word_is_its_own_value(tree: Tree) -> None:
    """It can attend to itself only, so the scores do not matter."""
    config = Config(d_model=3)
    w = weights_of(config)
    x = np.array([[[1.0, 0.0, 0.0]]])
    (y,) = tree(layer_of(tree, config, w), {"query": x})
    assert np.array_equal(y[0, 0], w["w_v"][0] + w["b_v"])


# PyTorch's own functions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "shape", "mask"),
    [
        (Config(d_model=10, scale=1.0), (2, 4, 10), None),
        (Config(d_model=4), (3, 2, 4), None),
        (Config(d_model=2), (3, 4, 2), padding([3, 2, 1], 4)),
        (Config(d_model=2, use_output=True), (3, 4, 2), padding([3, 2, 1], 4)),
        (Config(d_model=100, head_dim=80, scale=1.0, use_output=True), (3, 9, 100), None),
        (Config(d_model=13, head_dim=5, value_head_dim=11, use_bias=False), (2, 7, 13), None),
    ],
    ids=["unscaled", "scaled", "padded", "padded-output", "narrow-head", "no-bias"],
)
def test_torch_linear_and_attention(tree: Tree, config: Config, shape: tuple[int, ...], mask: Any) -> None:
    """`linear` and `scaled_dot_product_attention`, with weights as `nn.Linear` keeps them."""
    w = weights_of(config)
    inputs: Arrays = {"query": normal(*shape)} | ({} if mask is None else {"mask": mask})
    held = {name: torch.from_numpy(np.ascontiguousarray(p.T)).requires_grad_() for name, p in w.items()}
    x = torch.from_numpy(inputs["query"]).requires_grad_()
    q, k, v = (linear(x, held[f"w_{name}"], held.get(f"b_{name}")) for name in "qkv")
    y = scaled_dot_product_attention(
        q, k, v, None if mask is None else torch.from_numpy(mask).expand(-1, shape[1], -1), scale=config.scale
    )
    y = linear(y, held["w_o"], held.get("b_o")) if config.use_output else y
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=x, **held).items():
        assert ratio(grad if name == "dquery" else grad.T, want[name]) <= 1, name
    assert ratio(tree(layer_of(tree, config, w), inputs)[0], want["y"]) <= 1


def test_torch_multihead_attention_with_one_head() -> None:
    """`nn.MultiheadAttention` packs the three projections and hides where its mask is True."""
    config, mask = Config(d_model=7, use_output=True), padding([5, 3], 5)
    w = weights_of(config)
    theirs = torch.nn.MultiheadAttention(7, 1, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.from_numpy(np.concatenate([w["w_q"].T, w["w_k"].T, w["w_v"].T])))
        theirs.in_proj_bias.copy_(torch.from_numpy(np.concatenate([w["b_q"], w["b_k"], w["b_v"]])))
        theirs.out_proj.weight.copy_(torch.from_numpy(w["w_o"].T))
        theirs.out_proj.bias.copy_(torch.from_numpy(w["b_o"]))
    inputs = {"query": normal(2, 5, 7), "mask": mask}
    x = torch.from_numpy(inputs["query"])
    y, weights = theirs(x, x, x, key_padding_mask=torch.from_numpy(~mask[:, 0]))
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights.detach(), want["out1"]) <= 1


# Common mistakes ------------------------------------------------------------------------------------------------------


def test_a_scale_after_the_softmax_shrinks_the_output() -> None:
    """Weights that add up to 1/2: half of what unscaled attention gives, and not what scaled attention gives."""
    config, inputs = Config(d_model=4), {"query": normal(3, 2, 4)}
    w = weights_of(config)
    x = torch.from_numpy(inputs["query"])
    q, k, v = (linear(x, torch.from_numpy(w[f"w_{n}"].T.copy()), torch.from_numpy(w[f"b_{n}"])) for n in "qkv")
    mistaken = torch.softmax(q @ k.transpose(-1, -2), dim=-1) / 2 @ v
    assert ratio(2 * mistaken, bounded(replace(config, scale=1.0), inputs, w)["y"]) <= 1
    assert ratio(mistaken, bounded(config, inputs, w)["y"]) > 1


def test_a_padding_mask_on_the_rows_hides_no_key(tree: Tree) -> None:
    """(b, t, 1) silences the padded queries; the words still attend to the padding."""
    config, x, mask = Config(d_model=3), normal(2, 5, 3), padding([3, 2], 5)
    layer = layer_of(tree, config, weights_of(config))
    (right,) = tree(layer, {"query": x, "mask": mask})
    (wrong,) = tree(layer, {"query": x, "mask": mask.transpose(0, 2, 1)})
    (none,) = tree(layer, {"query": x})
    words = mask[:, 0]
    assert np.array_equal(wrong[words], none[words])
    assert not np.any(wrong[~words])
    assert not np.any(right[words] == none[words])
    poisoned = x.copy()
    poisoned[~words] = 1e3
    assert np.array_equal(tree(layer, {"query": poisoned, "mask": mask})[0][words], right[words])
