"""Luong attention against scalar loops, PyTorch's own functions and layers, the other variants, and known numbers."""

from dataclasses import replace
from math import exp, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import bilinear, scaled_dot_product_attention

from attn_np.contract import Config as AnyConfig
from attn_np.contract import additive, dot_product
from attn_np.contract.luong import Config
from parity_tests.tests.inputs import TREES, Arrays, Tree, first_difference, normal
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

# Scalar loops from the paper's three scores and two windows -----------------------------------------------------------


def score(kind: str, w: Any, h_t: list[float], h_s: list[float]) -> float:
    """How well a target state fits a source state; the joint matrix of "concat" has a row for each hidden unit."""
    if kind == "dot":
        return sum(a * b for a, b in zip(h_t, h_s, strict=True))
    if kind == "general":
        return sum(h_t[a] * w["w"][a][b] * h_s[b] for a in range(len(h_t)) for b in range(len(h_s)))
    both, total = h_t + h_s, 0.0
    for e, v in enumerate(w["w_score"]):
        row = [line[e] for line in w["w_q"]] + [line[e] for line in w["w_k"]]
        total += v * tanh(sum(a * b for a, b in zip(row, both, strict=True)))
    return total


def center(config: Config, w: Any, t: int, h_t: list[float], length: int) -> float:
    """The aligned position p_t of the target word t, from 1: t itself, or S sigmoid(v_p^T tanh(W_p h_t))."""
    if config.local != "p":
        return t
    total = 0.0
    for m, v in enumerate(w["w_center"]):
        total += v * tanh(sum(a * line[m] for a, line in zip(h_t, w["w_position"], strict=True)))
    return length / (1 + exp(-total))


def share(config: Config, away: float) -> float:
    """What is left of a weight at a distance s - p_t: all of it inside of the window, or less by a Gaussian."""
    if config.local is None or config.half_window is None:
        return 1.0
    if abs(away) > config.half_window:
        return 0.0
    sigma = config.half_window / 2
    return exp(-(away**2) / (2 * sigma**2)) if config.local == "p" else 1.0


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Contexts c_t and alignments a_t(s) of one batch row, one number at a time."""
    contexts, alignments = [], []
    for i, h_t in enumerate(query):
        scores = [score(config.score, w, h_t, h_s) + bias[i][j] for j, h_s in enumerate(key)]
        words = [j for j in range(len(key)) if mask[i][j] and (not config.causal or j <= i + len(key) - len(query))]
        p_t, factors = center(config, w, len(words) if config.causal else i + 1, h_t, len(words)), [0.0] * len(key)
        for s, j in enumerate(words, start=1):
            factors[j] = share(config, s - p_t)
        raised = [exp(x) if factor else 0.0 for x, factor in zip(scores, factors, strict=True)]
        weights = [factor * e / sum(raised) if e else 0.0 for e, factor in zip(raised, factors, strict=True)]
        used = [a * k / (1 - config.dropout) for a, k in zip(weights, keep[i], strict=True)]
        contexts.append([sum(a * v[c] for a, v in zip(used, value, strict=True)) for c in range(len(value[0]))])
        alignments.append(weights)
    return contexts, alignments


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Contexts and alignments."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    config, rows = each_row(config, inputs, (query, key, value), (*query.shape[:2], key.shape[1]))
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# PyTorch's own functions and layers -----------------------------------------------------------------------------------


def masked(query_dim: int, key_dim: int) -> Arrays:
    """Queries and keys of different lengths, values of another width, one query that sees nothing."""
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.6
    mask[1, 3] = False
    return {"query": normal(2, 5, query_dim), "key": normal(2, 7, key_dim), "value": normal(2, 7, 2), "mask": mask}


def test_dot_is_torch_scaled_dot_product_attention_without_its_scale() -> None:
    inputs = masked(3, 3)
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    y = scaled_dot_product_attention(q, k, v, torch.from_numpy(inputs["mask"]), scale=1.0)
    want = bounded(Config(query_dim=3, score="dot"), inputs)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v).items():
        assert ratio(grad, want[name]) <= 1, name


def attended(scores: torch.Tensor, value: torch.Tensor, mask: np.ndarray) -> torch.Tensor:
    return torch.bmm(torch.softmax(scores.masked_fill(torch.from_numpy(~mask), -torch.inf), dim=-1), value)


def test_general_is_torch_bilinear() -> None:
    config = Config(query_dim=3, key_dim=11)
    inputs, w = masked(3, 11), weights_of(config)
    inputs["mask"][1, 3, 0] = True
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    matrix = torch.from_numpy(w["w"]).requires_grad_()
    pairs = q[:, :, None].expand(2, 5, 7, 3).reshape(-1, 3), k[:, None].expand(2, 5, 7, 11).reshape(-1, 11)
    y = attended(bilinear(*pairs, matrix[None]).reshape(2, 5, 7), v, inputs["mask"])
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v, w=matrix).items():
        assert ratio(grad, want[name]) <= 1, name


def test_concat_is_one_linear_layer_over_both() -> None:
    """As the paper writes it, W [h_t; h_s] with one joint W: the gradient of w_q is its left part, of w_k its right."""
    config = Config(query_dim=3, key_dim=5, hidden_dim=11, score="concat")
    inputs, w = masked(3, 5), weights_of(config)
    inputs["mask"][1, 3, 0] = True
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    joint, last = torch.nn.Linear(8, 11, bias=False).double(), torch.nn.Linear(11, 1, bias=False).double()
    with torch.no_grad():
        joint.weight.copy_(torch.from_numpy(np.concatenate([w["w_q"], w["w_k"]]).T))
        last.weight.copy_(torch.from_numpy(w["w_score"][None]))
    both = torch.cat([q[:, :, None].expand(2, 5, 7, 3), k[:, None].expand(2, 5, 7, 5)], dim=-1)
    y = attended(last(torch.tanh(joint(both))).squeeze(-1), v, inputs["mask"])
    want = bounded(config, inputs, w)
    grads = torch_gradients(y, query=q, key=k, value=v, joint=joint.weight, w_score=last.weight)
    dw = grads.pop("djoint").T
    grads |= {"dw_q": dw[:3], "dw_k": dw[3:], "dw_score": grads["dw_score"][0]}
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in grads.items():
        assert ratio(grad, want[name]) <= 1, name


def test_a_predicted_center_is_a_gaussian_behind_the_softmax() -> None:
    """Equation 10 of the paper with PyTorch's own modules and gradients, for a batch of padded sources."""
    config = Config(query_dim=3, key_dim=11, local="p", half_window=2, position_dim=5)
    inputs, w, lengths = masked(3, 11), weights_of(config), torch.tensor([7, 4])
    inputs["mask"] = (np.arange(7) < lengths.numpy()[:, None])[:, None]
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in w.items()}
    inner = torch.tanh(torch.nn.functional.linear(q, leaves["w_position"].T))
    center = lengths[:, None] * torch.sigmoid(torch.nn.functional.linear(inner, leaves["w_center"][None]).squeeze(-1))
    away = torch.arange(1, 8)[None, None, :] - center[..., None]
    inside = (away.detach().abs() <= 2).numpy() & inputs["mask"]
    scores = torch.einsum("btd,di,bsi->bts", q, leaves["w"], k)
    weights = torch.softmax(scores.masked_fill(torch.from_numpy(~inside), -torch.inf), dim=-1)
    normal_at_0 = torch.distributions.Normal(0.0, 1.0).log_prob(torch.zeros((), dtype=torch.float64))
    y = torch.bmm(weights * torch.exp(torch.distributions.Normal(0.0, 1.0).log_prob(away) - normal_at_0), v)
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# This variant with these fields is that one ---------------------------------------------------------------------------


def same_as(tree: Tree, ours: Config, weights: Arrays, theirs: AnyConfig, given: Arrays | None = None) -> None:
    """Outputs and gradients of ours within the bounds of theirs, with a mask, a bias and dropout."""
    rng, inputs = np.random.default_rng(2), masked(ours.query_dim, ours.sizes()["i"])
    inputs |= {"bias": rng.normal(size=(2, 5, 7)), "keep": rng.random((2, 5, 7)) < 0.5}
    layer, want = layer_of(tree, ours, weights), bounded(theirs, inputs, weights if given is None else given)
    y, probs = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": probs} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_concat_is_additive_attention(tree: Tree) -> None:
    widths = {"query_dim": 3, "key_dim": 5, "hidden_dim": 11, "dropout": 0.5}
    config = Config(**widths, score="concat")
    same_as(tree, config, weights_of(config), additive.Config(**widths))


def test_dot_is_dot_product_attention_without_its_scale(tree: Tree) -> None:
    same_as(tree, Config(query_dim=3, score="dot", dropout=0.5), {}, dot_product.Config(scale=1.0, dropout=0.5))


def test_general_with_the_identity_is_dot(tree: Tree) -> None:
    config = Config(query_dim=3, dropout=0.5)
    same_as(tree, config, {"w": np.eye(3)}, replace(config, score="dot"), {})


def test_a_monotone_window_is_a_mask(tree: Tree) -> None:
    """Around the number of the query, both counted from the first; as long as the keys it hides nothing."""
    inputs, near = masked(3, 3), np.abs(np.arange(7)[None, :] - np.arange(5)[:, None]) <= 1
    dy = cotangent((2, 5, 2))
    for half, pattern in ((1, near), (7, np.ones((5, 7), bool))):
        layer = layer_of(tree, Config(query_dim=3, score="dot", local="m", half_window=half))
        given = {name: x for name, x in inputs.items() if name != "mask"}
        want = bounded(Config(query_dim=3, score="dot"), given | {"mask": pattern})
        got = {"y": tree(layer, given)[0]} | tree.gradients(layer, given, dy)
        for name, x in got.items():
            assert ratio(x, want[name]) <= 1, name


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_one_input_gives_queries_keys_and_values(tree: Tree, score: str) -> None:
    """Left out, key and value are the query, and its gradient is the sum of the three."""
    config, x = Config(query_dim=3, score=score), normal(2, 5, 3)
    w = weights_of(config)
    layer, want = layer_of(tree, config, w), bounded(config, {"query": x, "key": x, "value": x}, w)
    (y,) = tree(layer, {"query": x})
    grads = tree.gradients(layer, {"query": x}, cotangent(y.shape))
    assert ratio(y, want["y"]) <= 1
    assert ratio(grads["dquery"], want["dquery"] + want["dkey"] + want["dvalue"]) <= 1
    for name in w:
        assert ratio(grads[f"d{name}"], want[f"d{name}"]) <= 1, name


# Numbers known beforehand ---------------------------------------------------------------------------------------------


def test_a_matrix_stands_between_query_and_key(tree: Tree) -> None:
    """Scores q^T w k of 1024 and 0; with w transposed they change places."""
    inputs = {"query": np.array([[[1.0, 0.0]]]), "key": np.array([[[1.0, 0.0], [0.0, 1.0]]])}
    inputs |= {"value": np.array([[[3.0], [5.0]]])}
    w = np.array([[0.0, 1024.0], [0.0, 0.0]])
    assert tree(layer_of(tree, Config(query_dim=2), {"w": w}), inputs)[0].tolist() == [[[5.0]]]
    assert tree(layer_of(tree, Config(query_dim=2), {"w": w.T}), inputs)[0].tolist() == [[[4.0]]]


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_a_query_that_sees_nothing_gives_nothing(tree: Tree, score: str) -> None:
    config = Config(query_dim=3, score=score)
    inputs = masked(3, 3)
    layer = layer_of(tree, config, weights_of(config))
    y, weights = tree(layer, inputs, return_weights=True)
    assert not np.any(y[1, 3])
    assert not np.any(weights[1, 3])
    assert not np.any(tree.gradients(layer, inputs, cotangent(y.shape))["dquery"][1, 3])


# Windows --------------------------------------------------------------------------------------------------------------


def drawn_window(tree: Tree, local: str, half: int, mask: str, t: int = 5, causal: bool = False) -> list[str]:
    """An x for each weight that is not 0, for one batch row and 6 keys of which some may be seen."""
    config = Config(query_dim=2, score="dot", causal=causal, local=local, half_window=half)
    inputs = {"query": normal(1, t, 2), "key": normal(1, 6, 2)}
    inputs["mask"] = np.array([[[place == "x" for place in mask]]])
    params = {name: np.zeros(shape) for name, shape in config.shapes().items()}
    _, weights = tree(layer_of(tree, config, params), inputs, return_weights=True)
    return ["".join("x" if place else "." for place in row) for row in (weights[0] != 0).tolist()]


def test_a_monotone_window_moves_with_the_query(tree: Tree) -> None:
    """One that has left the keys behind sees nothing, and what is hidden takes no place."""
    assert drawn_window(tree, "m", 1, "xxxxxx", 8) == [
        "xx....", "xxx...", ".xxx..", "..xxx.", "...xxx", "....xx", ".....x", "......"
    ]  # fmt: skip
    assert drawn_window(tree, "m", 1, "..xxx.") == ["..xx..", "..xxx.", "...xx.", "....x.", "......"]


def test_a_causal_window_ends_at_the_query(tree: Tree) -> None:
    """Of 5 queries the last is at the last of 6 keys, and what is hidden takes no place."""
    assert drawn_window(tree, "m", 1, "xxxxxx", causal=True) == ["xx....", ".xx...", "..xx..", "...xx.", "....xx"]
    assert drawn_window(tree, "m", 1, "x.x.xx", causal=True) == ["x.....", "x.x...", "x.x...", "..x.x.", "....xx"]


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@pytest.mark.parametrize("local", [None, "m", "p"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_every_causal_score_decodes(name: str, local: str | None, score: str) -> None:
    """Position by position and in pieces, of sequences that begin with padding: the numbers of the full pass."""
    half = None if local is None else 2
    config = Config(query_dim=3, score=score, causal=True, local=local, half_window=half)
    tree, w, x = TREES[name], weights_of(config), normal(2, 7, 3)
    layer = layer_of(tree, config, w)
    want, sizes = bounded(config, {"query": x}, w)["y"], {"v": 3}
    for pieces in ([1] * 7, [4, 1, 2]):
        cache, start, rows = layer.init_cache(2, 7, dtype="float64", **sizes), 0, []
        for size in pieces:
            y, cache = layer.step(tree.array(x[:, start : start + size]), cache)
            rows.append(tree.numpy(y))
            start += size
        assert ratio(np.concatenate(rows, axis=1), want) <= 1
    real = np.array([[True] * 5, [False, True, False, True, True]])
    y, cache = layer.step(
        tree.array(x[:, :5]), layer.init_cache(2, 7, dtype="float64", **sizes), valid=tree.array(real)
    )
    want = bounded(config, {"query": x[1:, :5][:, real[1]]}, w)["y"]
    assert ratio(tree.numpy(y)[1:, real[1]], want) <= 1


def test_a_window_holds_the_keys_at_its_edges(tree: Tree) -> None:
    """With weights of 0 a predicted center is half of the length, here a key's own number."""
    assert drawn_window(tree, "p", 1, "xxxxxx", 1) == [".xxx.."]
    assert drawn_window(tree, "p", 1, "xx.xx.", 1) == ["xx.x.."]
    assert drawn_window(tree, "p", 1, "xxx...", 1) == ["xx...."]


def test_what_no_window_shows_has_no_influence(tree: Tree) -> None:
    """NaN in keys and values beyond the windows of all queries, and in queries beyond all keys."""
    for local, beyond in (("m", 5), ("p", 6)):
        config = Config(query_dim=2, local=local, half_window=1)
        params = weights_of(config) | ({"w_center": np.zeros(2)} if local == "p" else {})
        layer, clean = layer_of(tree, config, params), {"query": normal(1, 3, 2), "key": normal(1, 9, 2)}
        clean["value"] = normal(1, 9, 3)
        dirty = {name: x.copy() for name, x in clean.items()}
        dirty["key"][:, beyond:] = dirty["value"][:, beyond:] = np.nan
        results = []
        for inputs in (clean, dirty):
            y = tree(layer, inputs)[0]
            results.append({"y": y} | tree.gradients(layer, inputs, cotangent(y.shape)))
        assert first_difference(*results) is None
    layer = layer_of(tree, Config(query_dim=2, local="m", half_window=1), {"w": np.eye(2)})
    results = []
    for last in (0.0, np.nan):
        inputs = {"query": normal(1, 5, 2), "key": normal(1, 3, 2)}
        inputs["query"][:, 4] = last
        y = tree(layer, inputs)[0]
        results.append({"y": y} | tree.gradients(layer, inputs, cotangent(y.shape)))
    assert first_difference(*results) is None


def test_what_rounding_leaves_open_is_in_the_bound() -> None:
    """A center at the very edge: either window fits, and the bound holds the weights of both."""
    config = Config(query_dim=2, score="dot", local="p", half_window=1)
    inputs = {"query": np.ones((1, 1, 2)), "key": normal(1, 4, 2)}
    params = {"w_position": np.zeros((2, 2)), "w_center": np.zeros(2)}
    want = bounded(config, inputs, params)["out1"]
    # The window of the first query around itself: the second key and the first, without the third.
    fewer = witness(replace(config, local="m"), inputs, {})["out1"]
    assert (np.count_nonzero(want.v), np.count_nonzero(fewer)) == (3, 2)
    assert ratio(fewer * [exp(-2.0), 1.0, 0.0, 0.0], want) <= 1


# Fields ---------------------------------------------------------------------------------------------------------------


def test_each_score_has_its_own_parameters(tree: Tree) -> None:
    layers = {score: tree.package.build("luong", query_dim=3, score=score) for score in ("dot", "general", "concat")}
    found = {score: {name: tuple(x.shape) for name, x in layer.params().items()} for score, layer in layers.items()}
    assert found == {"dot": {}, "general": {"w": (3, 3)}, "concat": {"w_q": (3, 3), "w_k": (3, 3), "w_score": (3,)}}


REFUSED = {
    "narrow": (
        {"score": "dot", "key_dim": 5},
        "key_dim equal to query_dim for score='dot', got key_dim=5, query_dim=3; "
        "leave key_dim out or set score='general'",
    ),
    "dot": (
        {"score": "dot", "hidden_dim": 11},
        "hidden_dim for score='concat' only, got hidden_dim=11, score='dot'; leave hidden_dim out",
    ),
    "general": (
        {"hidden_dim": 11},
        "hidden_dim for score='concat' only, got hidden_dim=11, score='general'; leave hidden_dim out",
    ),
    "unknown window": (
        {"local": "monotone", "half_window": 2},
        "local to be one of None, 'm', 'p', got 'monotone'; set local=",
    ),
    "window without a size": (
        {"local": "m"},
        "half_window for local='m' and local='p', and for them only, got half_window=None, local='m'; "
        "give both or none of them",
    ),
    "size without a window": (
        {"half_window": 2},
        "half_window for local='m' and local='p', and for them only, got half_window=2, local=None; "
        "give both or none of them",
    ),
    "nothing to predict": (
        {"local": "m", "half_window": 2, "position_dim": 3},
        "position_dim for local='p' only, got position_dim=3, local='m'; leave position_dim out",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(tree: Tree, why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        tree.package.build("luong", query_dim=3, **fields)
    assert str(caught.value) == f"luong: expected {words}"
