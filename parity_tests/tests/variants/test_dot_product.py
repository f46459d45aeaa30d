"""Dot-product attention against scalar loops, PyTorch's and JAX's own functions, and numbers known beforehand."""

from math import exp, sqrt, tanh
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from attn_np.contract.dot_product import Config
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    ratio,
    stacked,
    torch_gradients,
)

# Scalar loops from the formula ----------------------------------------------------------------------------------------


def sees(config: Config, i: int, j: int, t: int, s: int) -> bool:
    """Query i, standing at i + s - t, sees key j."""
    left, right = config.window or (None, None)
    place = i + s - t
    if config.causal and j > place:
        return False
    return (left is None or j >= place - left) and (right is None or j <= place + right)


def loops(config: Config, query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row, one number at a time."""
    t, s, width = len(query), len(key), len(query[0])
    scale = 1 / sqrt(width) if config.scale is None else config.scale
    raised = [[0.0] * s for _ in range(t)]
    for i in range(t):
        for j in range(s):
            if not sees(config, i, j, t, s) or not mask[i][j]:
                continue
            score = scale * sum(query[i][c] * key[j][c] for c in range(width))
            if config.softcap is not None:
                score = config.softcap * tanh(score / config.softcap)
            raised[i][j] = exp(score + bias[i][j])
    weights = [[0.0] * s for _ in range(t)]
    for i in range(t):
        for j in range(s):
            rivals = raised[i] if config.normalize_over == "keys" else [row[j] for row in raised]
            weights[i][j] = raised[i][j] / sum(rivals) if raised[i][j] else 0.0
    used = [
        [w / (1 - config.dropout) * k for w, k in zip(*pair, strict=True)] for pair in zip(weights, keep, strict=True)
    ]
    y = [[sum(used[i][j] * value[j][c] for j in range(s)) for c in range(len(value[0]))] for i in range(t)]
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and weights."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    config, rows = each_row(config, inputs, (query, key, value), (*query.shape[:2], key.shape[1]))
    return stacked([loops(config, *row) for row in rows], "y", "out1")


# Numbers known beforehand ---------------------------------------------------------------------------------------------


def equal_keys(queries: int) -> Arrays:
    """Ten keys that no query can tell apart, with the values 0 .. 39."""
    values = np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    return {"query": normal(2, queries, 2), "key": np.ones((2, 10, 2)), "value": values}


def test_a_single_query_over_the_queries_sums_the_values(tree: Tree) -> None:
    """The common mistake: every weight is 1, whatever the query asks, and nothing can be learned from it."""
    layer = layer_of(tree, Config(normalize_over="queries"))
    y, weights = tree(layer, equal_keys(1), return_weights=True)
    assert y.tolist() == [[[180.0, 190.0, 200.0, 210.0]]] * 2
    assert np.all(weights == 1)
    grads = tree.gradients(layer, equal_keys(1), cotangent(y.shape))
    assert not np.any(grads["dquery"])
    assert not np.any(grads["dkey"])


def test_equal_keys_give_the_mean_of_the_values(tree: Tree) -> None:
    want = bounded(Config(), equal_keys(3))["y"]
    mean = np.broadcast_to([18.0, 19.0, 20.0, 21.0], (2, 3, 4))
    assert ratio(mean, want) <= 1
    assert ratio(tree(layer_of(tree, Config()), equal_keys(3))[0], want) <= 1


def test_over_the_queries_the_outputs_share_the_values(tree: Tree) -> None:
    """Summed over the queries every value is given out once."""
    (y,) = tree(layer_of(tree, Config(normalize_over="queries")), equal_keys(3))
    want = np.sum(bounded(Config(normalize_over="queries"), equal_keys(3))["y"], axis=1)
    total = np.broadcast_to([180.0, 190.0, 200.0, 210.0], (2, 4))
    assert ratio(total, want) <= 1
    assert ratio(np.sum(y, axis=1), want) <= 1


def test_over_the_queries_is_over_the_keys_with_both_exchanged(tree: Tree) -> None:
    """p_ts normalised over t is what keys that ask the queries would get."""
    q, k, mask = normal(2, 5, 3), normal(2, 7, 3), np.random.default_rng(0).random((2, 5, 7)) < 0.5
    mask[0, 2], mask[1, :, 4] = False, False
    over = layer_of(tree, Config(normalize_over="queries"))
    _, weights = tree(over, {"query": q, "key": k, "mask": mask}, return_weights=True)
    exchanged = bounded(Config(), {"query": k, "key": q, "mask": mask.transpose(0, 2, 1)})["out1"]
    assert ratio(weights.transpose(0, 2, 1), exchanged) <= 1


def test_a_score_far_above_the_others_takes_its_value(tree: Tree) -> None:
    """Scores 1024 apart leave weights of exactly 1 and 0; two equal ones share, exactly."""
    query = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    key = np.array([[[1024.0, 0.0], [0.0, 2048.0], [0.0, 2048.0]]])
    value = np.array([[[3.0], [5.0], [11.0]]])
    (y,) = tree(layer_of(tree, Config(scale=1.0)), {"query": query, "key": key, "value": value})
    assert y.tolist() == [[[3.0], [8.0]]]


def test_kept_weights_are_divided_by_the_share_kept(tree: Tree) -> None:
    """Half dropped: each kept weight counts twice, a query that keeps none gives 0."""
    inputs = {
        "query": np.zeros((1, 3, 2)),
        "key": np.zeros((1, 4, 2)),
        "value": np.array([[[1.0], [2.0], [4.0], [8.0]]]),
    }
    keep = np.array([[[True, True, True, True], [True, False, False, True], [False, False, False, False]]])
    y, weights = tree(layer_of(tree, Config(dropout=0.5)), inputs | {"keep": keep}, return_weights=True)
    assert y.tolist() == [[[7.5], [4.5], [0.0]]]
    assert np.all(weights == 0.25)


# The frameworks' own functions ----------------------------------------------------------------------------------------


def masked() -> Arrays:
    """Queries and keys of different lengths, values of another width, one query that sees nothing."""
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.6
    mask[1, 3] = False
    return {"query": normal(2, 5, 3), "key": normal(2, 7, 3), "value": normal(2, 7, 11), "mask": mask}


@pytest.mark.parametrize("scale", [None, 1.0, 0.375])
def test_torch_scaled_dot_product_attention(scale: float | None) -> None:
    inputs = masked()
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    y = scaled_dot_product_attention(q, k, v, torch.from_numpy(inputs["mask"]), scale=scale)
    want = bounded(Config(scale=scale), inputs)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v).items():
        assert ratio(grad, want[name]) <= 1, name


def test_torch_causal_aligned_at_the_last_key() -> None:
    inputs = {name: x for name, x in masked().items() if name != "mask"}
    q, k, v = (torch.from_numpy(x)[:, None] for x in inputs.values())
    y = scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(5, 7))
    assert ratio(y[:, 0].numpy(), bounded(Config(causal=True), inputs)["y"]) <= 1


def test_torch_bias() -> None:
    """PyTorch adds a float mask to the scores: our bias."""
    inputs = masked() | {"bias": normal(2, 5, 7)}
    del inputs["mask"]
    q, k, v, bias = (torch.from_numpy(x) for x in inputs.values())
    y = scaled_dot_product_attention(q, k, v, bias.requires_grad_())
    want = bounded(Config(), inputs)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(torch_gradients(y, bias=bias)["dbias"], want["dbias"]) <= 1


def test_jax_dot_product_attention() -> None:
    """JAX's own function computes in float32 whatever it is given, and gives a query without keys a mean."""
    inputs = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in masked().items()}
    inputs["value"], inputs["mask"][..., 0] = inputs["value"][..., :3], True
    q, k, v = (jnp.asarray(inputs[name])[:, :, None] for name in ("query", "key", "value"))
    with jax.default_matmul_precision("highest"):
        y = jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(inputs["mask"])[:, None])
    assert ratio(y[:, :, 0], bounded(Config(), inputs, dtype="float32")["y"]) <= 1
