"""Normalised queries and keys against scalar loops, PyTorch's own norms, and what a norm promises of the scores."""

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from attn_np.contract import mha
from attn_np.contract.qk_norm import Config
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

# Scalar loops ---------------------------------------------------------------------------------------------------------


def brought_to_length(kind: str, eps: float, x: list[float]) -> list[float]:
    """One vector: LN(x) of the second paper without its weight, x / |x| of the first, or by the mean square."""
    if kind == "layer":
        mean = sum(x) / len(x)
        x = [a - mean for a in x]
    size = sum(a * a for a in x) / (1 if kind == "l2" else len(x))
    return [a / sqrt(size + eps) for a in x]


def normed(kind: str, over: str | int, eps: float, w: Any, name: str, heads: list[list[float]]) -> list[list[float]]:
    """What the heads have of one word: some heads at a time brought to length, then by the weights, plus the biases."""
    n, k = {"head": 1, "all": len(heads)}.get(str(over)) or int(over), len(heads[0])
    groups = [heads[first : first + n] for first in range(0, len(heads), n)]
    joint = [y for group in groups for y in brought_to_length(kind, eps, [a for x in group for a in x])]
    found = []
    for h in range(len(heads)):
        (weight, shift), ones = (w.get(f"{which}_{name}_norm") for which in "wb"), [1.0] * k
        weight = weight or w.get(f"w_{name}_norm_heads", [ones] * len(heads))[h]
        shift = shift or w.get(f"b_{name}_norm_heads", [[0.0] * k] * len(heads))[h]
        found.append([a * g + b for a, g, b in zip(joint[k * h : k * h + k], weight, shift, strict=True)])
    return found


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    if config.norm == "l2" and config.scale is None:
        config = replace(config, scale=1.0)
    w: Any = {name: p.tolist() for name, p in params.items()}

    def turn(name: str, heads: list[list[float]]) -> list[list[float]]:
        if config.norm is None:
            return heads
        found = normed(config.norm, config.norm_over, config.norm_eps, w, name, heads)
        if config.norm == "l2" and name == "q":
            return [[a * w["w_scale"][h] for a in x] for h, x in enumerate(found)]
        return found

    def settle(heads: list[list[float]]) -> list[list[float]]:
        how, over, eps = config.context_norm, config.context_norm_over, config.context_norm_eps
        return heads if how is None else normed(how, over, eps, w, "context", heads)

    def weigh(h: int, scores: list[float | None]) -> list[float]:
        raised = [0.0 if x is None else exp(x) for x in scores]
        return [e / sum(raised) if e else 0.0 for e in raised]

    return stacked([of_heads(config, w, row[:3], row[3:], weigh, turn, settle) for row in rows], "y", "out1")


# PyTorch's own norms --------------------------------------------------------------------------------------------------


def torch_norm(config: Config, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """PyTorch's function; its L2 norm has no eps under the root, so one more entry of sqrt(eps) stands for it."""
    flat = x.flatten(2) if config.norm_over == "all" else x
    weight = weight if weight is None else weight.flatten()
    if config.norm == "l2":
        longer = functional.pad(flat, (0, 1), value=sqrt(config.norm_eps))
        return functional.normalize(longer, dim=-1)[..., :-1].reshape(x.shape)
    function = functional.rms_norm if config.norm == "rms" else functional.layer_norm
    return function(flat, flat.shape[-1:], weight, eps=config.norm_eps).reshape(x.shape)


@pytest.mark.parametrize("over", ["head", "all"])
@pytest.mark.parametrize("norm", ["rms", "layer", "l2"])
def test_torch_norms(norm: str, over: str) -> None:
    """Forward and every gradient, with PyTorch's norms and its attention between einsums."""
    config = Config(d_model=7, num_heads=3, head_dim=5, norm=norm, norm_over=over)
    w, x = weights_of(config), normal(2, 6, 7)
    mask = np.random.default_rng(1).random((2, 3, 6, 6)) < 0.6
    mask[..., 0] = True
    leaves = {n: torch.from_numpy(p).requires_grad_() for n, p in (w | {"query": x}).items()}
    q, k, v = (torch.einsum("btd,dhk->bthk", leaves["query"], leaves[f"w_{n}"]) + leaves[f"b_{n}"] for n in "qkv")
    q, k = (
        torch_norm(config, y, leaves.get(f"w_{n}_{'norm' if over == 'head' else 'norm_heads'}"))
        for n, y in zip("qk", (q, k), strict=True)
    )
    if norm == "l2":
        q = q * leaves["w_scale"][:, None]
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    found = functional.scaled_dot_product_attention(
        q, k, v, torch.from_numpy(mask), scale=1.0 if norm == "l2" else None
    )
    y = torch.einsum("bhtv,hvd->btd", found, leaves["w_o"]) + leaves["b_o"]
    want = bounded(config, {"query": x, "mask": mask}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# What a norm promises -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["rms", "layer", "l2"])
def test_the_length_of_a_query_does_not_matter(tree: Tree, norm: str) -> None:
    """Projections 2^20 times as large give the same weights, up to what eps is beside them."""
    config = Config(d_model=7, num_heads=3, head_dim=5, norm=norm, use_bias=False, norm_eps=2.0**-80)
    w, inputs = weights_of(config), {"query": normal(2, 5, 7)}
    want = bounded(config, inputs, w)["out1"]
    loud = w | {name: w[name] * 2.0**20 for name in ("w_q", "w_k")}
    assert ratio(tree(layer_of(tree, config, loud), inputs, return_weights=True)[1], want) <= 1
    plain = mha.Config(d_model=7, num_heads=3, head_dim=5, use_bias=False)
    other = tree(layer_of(tree, plain, {n: loud[n] for n in plain.shapes()}), inputs, return_weights=True)[1]
    assert ratio(other, want) > 1


def test_scores_are_no_larger_than_their_scale(tree: Tree) -> None:
    """With length 1 every score lies between -g and g: weights of n keys between e^-2g / n and e^2g / n."""
    config = Config(d_model=7, num_heads=3, head_dim=5, norm="l2")
    w = weights_of(config) | {"w_scale": np.array([0.0, 0.5, 1.0])}
    w["w_q"] *= 1e3
    _, weights = tree(layer_of(tree, config, w), {"query": normal(2, 11, 7)}, return_weights=True)
    assert ratio(weights[:, 0], bounded(config, {"query": normal(2, 11, 7)}, w)["out1"][:, 0]) <= 1
    for h, g in ((1, 0.5), (2, 1.0)):
        assert exp(-2 * g) / 11 < weights[:, h].min() < 1 / 11 < weights[:, h].max() < exp(2 * g) / 11


def test_shapes_of_any_size_are_told() -> None:
    """Those that a file states are compared with its arrays first: no square root that no float can hold."""
    assert Config(d_model=7, num_heads=3, head_dim=10**400, norm="l2").shapes()["w_scale"] == (3,)


def test_one_head_is_all_heads(tree: Tree) -> None:
    """Outputs and gradients: with one head there is nothing else to be normalised with."""
    fields: Any = {"d_model": 7, "num_heads": 1, "head_dim": 5, "norm": "layer", "causal": True}
    config, alone = Config(norm_over="all", **fields), Config(norm_over="head", **fields)
    w, inputs = weights_of(config), {"query": normal(2, 6, 7)}
    renamed = {
        name.replace("_norm_heads", "_norm"): x.reshape(alone.shapes()[name.replace("_norm_heads", "_norm")])
        for name, x in w.items()
    }
    want, layer = bounded(alone, inputs, renamed), layer_of(tree, config, w)
    (y,) = tree(layer, inputs)
    assert ratio(y, want["y"]) <= 1
    for name, grad in tree.gradients(layer, inputs, cotangent(y.shape)).items():
        other = name.replace("_norm_heads", "_norm")
        if name != "db_k":
            assert ratio(grad.reshape(want[other].shape), want[other]) <= 1, name


def test_words_of_zeros_have_finite_gradients(tree: Tree) -> None:
    """A query and a key of length 0 are not divided by it."""
    for norm in ("rms", "layer", "l2"):
        config = Config(d_model=7, num_heads=3, head_dim=5, norm=norm, use_bias=False)
        w, x = weights_of(config), normal(2, 4, 7)
        x[0, 1] = 0.0
        layer = layer_of(tree, config, w)
        (y,) = tree(layer, {"query": x})
        assert np.isfinite(y).all()
        assert all(np.isfinite(g).all() for g in tree.gradients(layer, {"query": x}, cotangent(y.shape)).values())


@pytest.mark.parametrize("fields", [{"norm": "l2"}, {"norm_over": "all"}], ids=str)
def test_shared_heads_are_equal_heads(tree: Tree, fields: Any) -> None:
    """Every query head with a copy of the keys and values of its group: the same numbers, and the sums of gradients.

    The rms of all heads together is the same with every head twice, so that it may be compared.
    """
    config = Config(d_model=7, num_heads=6, num_kv_heads=3, head_dim=5, norm_eps=2.0**-80, **fields)
    w, inputs = weights_of(config), {"query": normal(2, 5, 7)}
    axis_of = {"w_k": 1, "w_v": 1, "b_k": 0, "b_v": 0} | ({"w_k_norm_heads": 0} if "w_k_norm_heads" in w else {})
    copies = {name: np.repeat(w[name], 2, axis) for name, axis in axis_of.items()}
    want, layer = bounded(replace(config, num_kv_heads=None), inputs, w | copies), layer_of(tree, config, w)
    (y,) = tree(layer, inputs)
    assert ratio(y, want["y"]) <= 1
    grads = tree.gradients(layer, inputs, cotangent(y.shape))
    own = bounded(config, inputs, w)
    assert all(ratio(grad, own[name]) <= 1 for name, grad in grads.items())
    for name, axis in axis_of.items():
        of_copies = want[f"d{name}"]
        shape = (*w[name].shape[:axis], 3, 2, *w[name].shape[axis + 1 :])
        total = np.sum(of_copies.reshape(shape), axis=axis + 1)
        assert ratio(grads[f"d{name}"], total) <= 1, name


REFUSED = {
    "num_kv_heads": (0, r"num_kv_heads to be an integer of at least 1, got 0"),
    "norm": ("batch", r"norm to be one of rms, layer, l2, got 'batch'"),
    "norm_over": ("heads", r"norm_over to be one of head, all, or how many heads from 1, got 'heads'"),
    "norm_eps": (0.0, r"norm_eps to be a finite int or float above 0.0, got 0.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_are_checked(tree: Tree, name: str) -> None:
    value, words = REFUSED[name]
    with pytest.raises(ValueError, match=rf"qk_norm: expected {words}; set {name}="):
        tree.package.build("qk_norm", d_model=6, num_heads=2, **{name: value})
