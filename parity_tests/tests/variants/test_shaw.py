"""Relative position representations against scalar loops, PyTorch's functions, and attention without positions."""

from math import sqrt

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from attn_np.contract import mha
from attn_np.contract.shaw import Config
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    separate,
    stacked,
    torch_gradients,
    weights_of,
)

# Scalar loops, from equations 1 to 4 of the paper ---------------------------------------------------------------------


def clipped(x: int, k: int) -> int:
    return max(-k, min(k, x))


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    words, limit = separate(inputs), config.max_distance
    t, s = (x.shape[1] for x in words[:2])
    config, rows = each_row(config, inputs, words, (len(words[0]), config.num_heads, t, s))
    w = {name: p.tolist() for name, p in params.items()}

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        moved = [a + b for a, b in zip(k, w["w_rel_k"][clipped(j - i, limit) + limit], strict=True)]
        return scale * sum(a * b for a, b in zip(q, moved, strict=True))

    def value(i: int, j: int, v: list[float]) -> list[float]:
        if not config.use_values:
            return v
        return [a + b for a, b in zip(v, w["w_rel_v"][clipped(j - i, limit) + limit], strict=True)]

    return stacked([heads_by_hand(config, w, row, score, value) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


def some(config: Config, t: int = 7) -> Arrays:
    rng = np.random.default_rng(t)
    inputs = {"query": rng.normal(size=(2, t, config.d_model)), "bias": rng.normal(size=(2, 1, 1, t))}
    shape = (2, config.num_heads, t, t)
    return inputs | {"mask": rng.random(shape) < 0.7, "keep": rng.random(shape) < 0.5}


@pytest.mark.parametrize("causal", [True, False])
def test_without_vectors_it_is_multi_head_attention(tree: Tree, causal: bool) -> None:
    """Vectors of 0: outputs and gradients of `mha`."""
    fields = {"d_model": 6, "num_heads": 3, "head_dim": 5, "value_head_dim": 2, "causal": causal, "dropout": 0.5}
    config = Config(**fields, max_distance=2)
    w, inputs = weights_of(config), some(config)
    w |= {name: np.zeros_like(w[name]) for name in ("w_rel_k", "w_rel_v")}
    rest = {name: x for name, x in w.items() if "rel" not in name}
    want, layer = bounded(mha.Config(**fields), inputs, rest), layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        if name != "db_k":  # it is 0, and what comes out is rounding
            assert ratio(got[name], array) <= 1, name


def test_alike_vectors_move_every_value_alike(tree: Tree) -> None:
    """The same vector for every distance: the weights stay, and each context moves by the vector."""
    config = Config(d_model=6, num_heads=2, max_distance=2, use_bias=False)
    w, x = weights_of(config), {"query": np.random.default_rng(0).normal(size=(2, 7, 6))}
    for name in ("w_rel_k", "w_rel_v"):
        w[name] = np.broadcast_to(w[name][:1], w[name].shape).copy()
    y, weights = tree(layer_of(tree, config, w), x, return_weights=True)
    want = bounded(config, x, w | {name: np.zeros_like(w[name]) for name in ("w_rel_k", "w_rel_v")})
    limits = bounded(config, x, w)
    moved = want["y"] + np.einsum("v,hvd->d", w["w_rel_v"][0], w["w_o"])
    assert ratio(y, moved + 0 * limits["y"]) <= 1
    assert ratio(weights, want["out1"] + (limits["out1"] - limits["out1"].v)) <= 1


@pytest.mark.parametrize("limit", [3, 9])
def test_torch_with_a_bias_made_of_the_table(limit: int) -> None:
    """PyTorch's own attention, its bias the products of queries and table; gradients by autograd."""
    config, t = Config(d_model=6, num_heads=2, max_distance=limit, use_values=False), 7
    w, x = weights_of(config), np.random.default_rng(0).normal(size=(2, t, 6))
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    given = torch.from_numpy(x).requires_grad_()

    def heads(name: str) -> torch.Tensor:
        flat = linear(given, p[f"w_{name}"].flatten(1).T, p[f"b_{name}"].flatten())
        return flat.unflatten(-1, (2, -1)).transpose(1, 2)

    q = heads("q")
    relative_position = torch.arange(t)[None, :] - torch.arange(t)[:, None]
    rows = p["w_rel_k"][relative_position.clamp(-limit, limit) + limit]
    added = torch.einsum("bhtk,tsk->bhts", q, rows) / sqrt(3)
    found = scaled_dot_product_attention(q, heads("k"), heads("v"), added)
    y = linear(found.transpose(1, 2).flatten(2), p["w_o"].flatten(0, 1).T, p["b_o"])
    want = bounded(config, {"query": x}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    names = [name for name in p if name != "b_k"]
    for name, grad in torch_gradients(y, query=given, **{name: p[name] for name in names}).items():
        assert ratio(grad, want[name]) <= 1, name


# Fields ---------------------------------------------------------------------------------------------------------------


def test_values_have_vectors_only_where_asked(tree: Tree) -> None:
    found = {
        use: set(tree.package.build("shaw", d_model=6, num_heads=2, use_values=use).params()) for use in (True, False)
    }
    assert found[True] - found[False] == {"w_rel_v"}


def test_a_distance_of_none_is_refused(tree: Tree) -> None:
    words = "shaw: expected max_distance to be an integer of at least 1, got 0; set max_distance="
    with pytest.raises(ValueError, match=words):
        tree.package.build("shaw", d_model=6, num_heads=2, max_distance=0)
