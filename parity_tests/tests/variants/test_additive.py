"""Additive attention against scalar loops, PyTorch's own layers, and numbers known beforehand."""

from dataclasses import replace
from math import exp, tanh
from typing import Any

import numpy as np
import torch

from attn_np.contract.additive import Config
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

# Scalar loops from the paper's alignment model ------------------------------------------------------------------------


def projected(x: list[float], w: list[list[float]]) -> list[float]:
    return [sum(a * row[e] for a, row in zip(x, w, strict=True)) for e in range(len(w[0]))]


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Contexts c_i and alignments alpha_ij of one batch row, one number at a time."""
    t, s = len(query), len(key)
    raised = [[0.0] * s for _ in range(t)]
    for i in range(t):
        for j in range(s):
            if mask[i][j] and (not config.causal or j <= i + s - t):
                pairs = zip(w["w_score"], projected(query[i], w["w_q"]), projected(key[j], w["w_k"]), strict=True)
                raised[i][j] = exp(sum(v * tanh(a + b) for v, a, b in pairs) + bias[i][j])
    weights = [[0.0] * s for _ in range(t)]
    for i in range(t):
        for j in range(s):
            rivals = raised[i] if config.normalize_over == "keys" else [row[j] for row in raised]
            weights[i][j] = raised[i][j] / sum(rivals) if raised[i][j] else 0.0
    context = [[0.0] * len(value[0]) for _ in range(t)]
    for i in range(t):
        for j in range(s):
            for c in range(len(value[0])):
                context[i][c] += weights[i][j] * keep[i][j] / (1 - config.dropout) * value[j][c]
    return context, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Contexts and alignments."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    config, rows = each_row(config, inputs, (query, key, value), (*query.shape[:2], key.shape[1]))
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# PyTorch's own layers -------------------------------------------------------------------------------------------------


def test_torch_linear_layers() -> None:
    """The network as it is usually built: three `nn.Linear` without biases, trained by autograd."""
    config, rng = Config(query_dim=7, key_dim=5, hidden_dim=11, dropout=0.5), np.random.default_rng(0)
    w = weights_of(config)
    inputs = {"query": normal(2, 3, 7), "key": normal(2, 13, 5), "value": normal(2, 13, 2)}
    query, key, value = (torch.from_numpy(x).requires_grad_() for x in inputs.values())
    layers = [torch.nn.Linear(n, m, bias=False).double() for n, m in ((7, 11), (5, 11), (11, 1))]
    with torch.no_grad():
        for layer, x in zip(layers, (w["w_q"].T, w["w_k"].T, w["w_score"][None]), strict=True):
            layer.weight.copy_(torch.from_numpy(x))
    to_query, to_key, to_score = layers
    scores = to_score(torch.tanh(to_query(query).unsqueeze(2) + to_key(key).unsqueeze(1))).squeeze(-1)
    mask, keep = rng.random((2, 3, 13)) < 0.7, rng.random((2, 3, 13)) < 0.5
    weights = torch.softmax(scores.masked_fill(torch.from_numpy(~mask), -torch.inf), dim=-1)
    y = torch.bmm(weights * torch.from_numpy(keep) / 0.5, value)
    learned = {"w_q": to_query.weight, "w_k": to_key.weight, "w_score": to_score.weight}
    grads = torch_gradients(y, query=query, key=key, value=value, **learned)
    grads |= {"dw_q": grads["dw_q"].T, "dw_k": grads["dw_k"].T, "dw_score": grads["dw_score"][0]}
    want = bounded(config, inputs | {"mask": mask, "keep": keep}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in grads.items():
        assert ratio(grad, want[name]) <= 1, name


# Numbers known beforehand ---------------------------------------------------------------------------------------------

EQUAL = Config(query_dim=20, key_dim=2, hidden_dim=8)


def equal_keys(queries: int) -> Arrays:
    """Ten keys that no query can tell apart, with the values 0 .. 39."""
    values = np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    return {"query": normal(2, queries, 20), "key": np.ones((2, 10, 2)), "value": values}


def test_equal_keys_give_the_mean_of_the_values(tree: Tree) -> None:
    w = weights_of(EQUAL)
    want = bounded(EQUAL, equal_keys(2), w)["y"]
    assert ratio(np.broadcast_to([18.0, 19.0, 20.0, 21.0], (2, 2, 4)), want) <= 1
    assert ratio(tree(layer_of(tree, EQUAL, w), equal_keys(2))[0], want) <= 1


def test_over_the_queries_the_outputs_share_the_values(tree: Tree) -> None:
    """Summed over the queries every value is given out once; no output is a mean of values any more."""
    config, w = replace(EQUAL, normalize_over="queries"), weights_of(EQUAL)
    (y,) = tree(layer_of(tree, config, w), equal_keys(2))
    want = np.sum(bounded(config, equal_keys(2), w)["y"], axis=1)
    assert ratio(np.broadcast_to([180.0, 190.0, 200.0, 210.0], (2, 4)), want) <= 1
    assert ratio(np.sum(y, axis=1), want) <= 1
    assert np.all(y > 21)


def test_a_decoder_that_normalises_over_the_queries_never_learns_to_attend(tree: Tree) -> None:
    """It asks one query at a time: every weight is 1, and what makes the scores gets a gradient of exactly 0."""
    inputs = {"query": normal(3, 1, 20), "key": normal(3, 5, 2), "value": normal(3, 5, 4)}
    over = layer_of(tree, replace(EQUAL, normalize_over="queries"), weights_of(EQUAL))
    y, weights = tree(over, inputs, return_weights=True)
    assert np.all(weights == 1)
    grads = tree.gradients(over, inputs, cotangent(y.shape))
    assert not any(np.any(grads[name]) for name in ("dquery", "dkey", "dw_q", "dw_k", "dw_score"))
    grads = tree.gradients(layer_of(tree, EQUAL, weights_of(EQUAL)), inputs, cotangent(y.shape))
    assert all(np.all(grads[name]) for name in ("dquery", "dkey", "dw_q", "dw_k", "dw_score"))


def test_saturated_features_choose_exactly(tree: Tree) -> None:
    """tanh is -1, 0 or 1 at -64, 0 and 64, and scores 1024 apart leave weights of exactly 1 and 0."""
    config = Config(query_dim=1, hidden_dim=1)
    w = {"w_q": np.array([[32.0]]), "w_k": np.array([[32.0]]), "w_score": np.array([1024.0])}
    inputs = {"query": np.array([[[1.0], [-1.0]]]), "key": np.array([[[1.0], [-1.0], [1.0], [-1.0]]])}
    inputs |= {
        "value": np.array([[[3.0], [5.0], [7.0], [11.0]]]),
        "mask": np.array([[[True] * 4, [True, True, False, True]]]),
    }
    layer = layer_of(tree, config, w)
    assert tree(layer, inputs)[0].tolist() == [[[5.0], [3.0]]]
    inputs["mask"] = np.array([[[False, True, False, True], [False] * 4]])
    assert tree(layer, inputs)[0].tolist() == [[[8.0], [0.0]]]
