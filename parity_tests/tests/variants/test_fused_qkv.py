"""The fused projection against scalar loops, PyTorch's packed module, and the variants with three projections."""

from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import mha, self_attention
from attn_np.contract.fused_qkv import Config
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.variants.test_mha import head
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

# Scalar loops ---------------------------------------------------------------------------------------------------------


def loops(config: Config, w: Any, x: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Output of one batch row, and the weights of every head, one number at a time."""
    t, d, heads, width = len(x), config.d_model, config.num_heads, len(w["w_qkv"][0][0][0])

    def part(p: int, h: int, i: int) -> list[float]:
        """Query (p = 0), key (1) or value (2) of a word in a head."""
        offset = w["b_qkv"][p][h] if "b_qkv" in w else [0.0] * width
        return [sum(x[i][n] * w["w_qkv"][n][p][h][c] for n in range(d)) + offset[c] for c in range(width)]

    joined, weights = [[] for _ in range(t)], []
    for h in range(heads):
        q, k, v = ([part(p, h, i) for i in range(t)] for p in range(3))
        memory = [(k[h], v[h]) for k, v in zip(w.get("memory_k", ()), w.get("memory_v", ()), strict=True)]
        found, alpha = head(config, q, k, v, mask[h], bias[h], keep[h], memory)
        joined = [before + own for before, own in zip(joined, found, strict=True)]
        weights.append(alpha)
    if not config.use_output:
        return joined, weights
    rows = [row for head in w["w_o"] for row in head]
    offset = w.get("b_o", [0.0] * len(rows[0]))
    y = [
        [sum(a * row[n] for a, row in zip(both, rows, strict=True)) + b for n, b in enumerate(offset)]
        for both in joined
    ]
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# The variants with three projections ----------------------------------------------------------------------------------


def parted(w: Arrays, headless: bool = False) -> Arrays:
    """w_qkv and b_qkv as the three parameters that they hold, in the order q, k, v."""
    three = {f"w_{name}": w["w_qkv"][:, p] for p, name in enumerate("qkv")}
    three |= {f"b_{name}": w["b_qkv"][p] for p, name in enumerate("qkv") if "b_qkv" in w}
    three |= {name: x for name, x in w.items() if name in ("w_o", "b_o", "memory_k", "memory_v")}
    if not headless:
        return three
    return {
        name: x if name == "b_o" else x[:, 0] if name in ("w_q", "w_k", "w_v") else x[0] for name, x in three.items()
    }


def parted_gradients(grads: Arrays, headless: bool) -> Arrays:
    w = parted({name[1:]: g for name, g in grads.items()}, headless)
    return {"dquery": grads["dquery"]} | {f"d{name}": g for name, g in w.items()}


SHARED = {"d_model": 7, "head_dim": 5, "window": (3, 2), "softcap": 2.0, "dropout": 0.5}


@pytest.mark.parametrize(("use_bias", "use_output"), [(True, True), (False, False)])
def test_self_attention(tree: Tree, use_bias: bool, use_output: bool) -> None:
    """With one head it is `self_attention` with the three weights side by side: outputs and gradients."""
    config = Config(**SHARED, use_bias=use_bias, use_output=use_output)
    single = self_attention.Config(**SHARED, use_bias=use_bias, use_output=use_output)
    w, rng = weights_of(config), np.random.default_rng(0)
    inputs = {"query": normal(2, 11, 7), "mask": rng.random((2, 11, 11)) < 0.7, "keep": rng.random((2, 11, 11)) < 0.5}
    want = bounded(single, inputs, parted(w, headless=True))
    headed = {name: x if name == "query" else x[:, None] for name, x in inputs.items()}
    layer = layer_of(tree, config, w)
    (y,) = tree(layer, headed)
    got = {"y": y} | parted_gradients(tree.gradients(layer, headed, cotangent(y.shape)), headless=True)
    assert set(got) == set(want) - {"out1"}
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name


@pytest.mark.parametrize("memory_keys", [None, 2])
def test_multi_head_attention(tree: Tree, memory_keys: int | None) -> None:
    """With heads and an output projection it is `mha` with the three weights side by side: outputs and gradients."""
    config = Config(**SHARED, num_heads=3, use_output=True, output_dim=11, memory_keys=memory_keys)
    several = mha.Config(**SHARED, num_heads=3, output_dim=11, memory_keys=memory_keys)
    w, rng = weights_of(config), np.random.default_rng(0)
    inputs = {"query": normal(2, 11, 7), "mask": rng.random((2, 1, 11, 11)) < 0.7}
    inputs |= {"keep": rng.random((2, 3, 11, 11)) < 0.5, "bias": normal(3, 1, 11)}
    want = bounded(several, inputs, parted(w))
    layer = layer_of(tree, config, w)
    (y,) = tree(layer, inputs)
    grads = tree.gradients(layer, inputs, cotangent(y.shape))
    got = {"y": y, "dbias": grads["dbias"]} | parted_gradients(grads, headless=False)
    assert set(got) == set(want) - {"out1"}
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name


def test_the_same_bits_where_the_projection_is_exact(tree: Tree) -> None:
    """Small integers are projected without rounding; what follows is the same computation, to the bit."""
    config, rng = Config(d_model=7, num_heads=3, head_dim=5, scale=0.25, use_output=True), np.random.default_rng(0)
    w = {name: rng.integers(-2, 3, shape).astype(np.float64) for name, shape in config.shapes().items()}
    x = {"query": rng.integers(-2, 3, (2, 11, 7)).astype(np.float64)}
    several = mha.Config(d_model=7, num_heads=3, head_dim=5, scale=0.25)
    fused = tree(layer_of(tree, config, w), x, return_weights=True)
    apart = tree(layer_of(tree, several, parted(w)), x, return_weights=True)
    assert all(np.array_equal(a, b) for a, b in zip(fused, apart, strict=True))


def test_without_an_output_projection_heads_stand_side_by_side(tree: Tree) -> None:
    config = Config(d_model=7, num_heads=3, head_dim=5)
    w, x = weights_of(config), {"query": normal(2, 11, 7)}
    (y,) = tree(layer_of(tree, config, w), x)
    assert y.shape == (2, 11, 15)
    for h in range(3):
        alone = {"w_qkv": w["w_qkv"][:, :, h : h + 1], "b_qkv": w["b_qkv"][:, h : h + 1]}
        want = bounded(Config(d_model=7, head_dim=5), x, alone)["y"]
        assert ratio(y[..., 5 * h : 5 * h + 5], want) <= 1


def test_a_width_of_outputs_without_an_output_projection_is_refused(tree: Tree) -> None:
    with pytest.raises(ValueError, match="fused_qkv: expected no output_dim without use_output, got output_dim=5; set"):
        tree.package.build("fused_qkv", d_model=7, output_dim=5)


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def packed(x: np.ndarray) -> np.ndarray:
    """(d, p, h, k) as the weight of one `nn.Linear` with 3 h k outputs."""
    return np.ascontiguousarray(x.reshape(x.shape[0], -1).T)


@pytest.mark.parametrize("heads", [1, 2, 7])
def test_torch_multihead_attention(heads: int) -> None:
    """`nn.MultiheadAttention` keeps the same joint weight, transposed; its mask hides where it is True."""
    config = Config(d_model=14, num_heads=heads, use_output=True)
    w = weights_of(config)
    theirs = torch.nn.MultiheadAttention(14, heads, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.from_numpy(packed(w["w_qkv"])))
        theirs.in_proj_bias.copy_(torch.from_numpy(w["b_qkv"].reshape(-1)))
        theirs.out_proj.weight.copy_(torch.from_numpy(packed(w["w_o"].reshape(14, 14))))
        theirs.out_proj.bias.copy_(torch.from_numpy(w["b_o"]))
    mask = np.random.default_rng(0).random((2, heads, 5, 5)) < 0.6
    mask[..., 2] = True
    inputs = {"query": normal(2, 5, 14), "mask": mask}
    x = torch.from_numpy(inputs["query"]).requires_grad_()
    y, weights = theirs(x, x, x, attn_mask=torch.from_numpy(~mask.reshape(2 * heads, 5, 5)), average_attn_weights=False)
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights.detach(), want["out1"]) <= 1
    grads = torch_gradients(y, query=x, w_qkv=theirs.in_proj_weight, b_qkv=theirs.in_proj_bias)
    assert ratio(grads["dquery"], want["dquery"]) <= 1
    assert ratio(grads["dw_qkv"].T.reshape(w["w_qkv"].shape), want["dw_qkv"]) <= 1
    assert ratio(grads["db_qkv"].reshape(w["b_qkv"].shape), want["db_qkv"]) <= 1


@pytest.mark.parametrize(
    ("shape", "lengths", "use_output"),
    [((3, 2, 4), None, False), ((3, 4, 2), [3, 2, 1], True)],
    ids=["plain", "padded-output"],
)
def test_one_torch_linear_split_in_three(tree: Tree, shape: tuple[int, ...], lengths: Any, use_output: bool) -> None:
    """One `nn.Linear` of three times the width, split, attended over, and projected back."""
    config = Config(d_model=shape[2], use_output=use_output)
    w, inputs = weights_of(config), {"query": normal(*shape)}
    joint = torch.nn.Linear(shape[2], 3 * shape[2]).double()
    with torch.no_grad():
        joint.weight.copy_(torch.from_numpy(packed(w["w_qkv"])))
        joint.bias.copy_(torch.from_numpy(w["b_qkv"].reshape(-1)))
    q, k, v = torch.split(joint(torch.from_numpy(inputs["query"])), shape[2], dim=-1)
    scores = q @ k.transpose(-1, -2) * shape[2] ** -0.5
    if lengths:
        inputs["mask"] = (np.arange(shape[1]) < np.array(lengths)[:, None])[:, None, None]
        scores = scores.masked_fill(~torch.from_numpy(inputs["mask"][:, 0]), -torch.inf)
    y = torch.softmax(scores, dim=-1) @ v
    if use_output:
        y = y @ torch.from_numpy(w["w_o"][0]) + torch.from_numpy(w["b_o"])
    want = bounded(config, inputs, w)["y"]
    assert y.shape == shape
    assert ratio(y.detach(), want) <= 1
    assert ratio(tree(layer_of(tree, config, w), inputs)[0], want) <= 1


def test_columns_in_another_order_give_other_numbers() -> None:
    """Per head q, k, v instead of q, k, v of all heads: the same shape, so only the numbers can tell."""
    config = Config(d_model=6, num_heads=3)
    w, x = weights_of(config), {"query": normal(2, 5, 6)}
    swapped = {"w_qkv": w["w_qkv"].swapaxes(1, 2).copy(), "b_qkv": w["b_qkv"].swapaxes(0, 1).copy()}
    assert swapped["w_qkv"].shape == w["w_qkv"].shape
    y = bounded(config, x, swapped)["y"].v
    assert ratio(y, bounded(config, x, w)["y"]) > 1
