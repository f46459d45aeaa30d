"""Ring attention against scalar loops, the softmax over all keys at once, and PyTorch's own function."""

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np.contract import blockwise, dot_product
from attn_np.contract.ring import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, stacked, torch_gradients

# Scalar loops: algorithm 1 of the paper, place by place and step by step ----------------------------------------------


def loops(config: Config, query: Any, key: Any, value: Any, mask: Any) -> tuple[Any]:
    """Outputs of one batch row. At step i the place r holds the keys that began at place r - i."""
    n, scale = config.shards, 1 / sqrt(len(query[0])) if config.scale is None else config.scale
    many, few = -(-len(query) // n), -(-len(key) // n)
    y = [[0.0] * len(value[0]) for _ in query]
    for r in range(n):
        for i in range(r * many, min((r + 1) * many, len(query))):
            total, sums = 0.0, [0.0] * len(value[0])
            for step in range(n):
                home = (r - step) % n
                for j in range(home * few, min((home + 1) * few, len(key))):
                    if mask[i][j] and not (config.causal and j > i + len(key) - len(query)):
                        e = exp(scale * sum(a * b for a, b in zip(query[i], key[j], strict=True)))
                        total, sums = total + e, [a + e * x for a, x in zip(sums, value[j], strict=True)]
            y[i] = [a / total if total else 0.0 for a in sums]
    return (y,)


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    mask = np.broadcast_to(inputs.get("mask", True), (*query.shape[:2], key.shape[1]))
    rows = zip(*(x.tolist() for x in (query, key, value, mask)), strict=True)
    return stacked([loops(config, *row) for row in rows], "y")


# This variant with any number of shards is that one -------------------------------------------------------------------


def masked() -> Arrays:
    """Queries and keys of different lengths, a query that sees nothing, one that sees nothing but the last key."""
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.6
    mask[1, 3] = mask[0, 2] = False
    mask[0, 2, 6] = True
    return {"query": normal(2, 5, 3), "key": normal(2, 7, 3), "value": normal(2, 7, 11), "mask": mask}


@pytest.mark.parametrize("other", [dot_product.Config(), blockwise.Config(block_size=2)], ids=["dot", "blockwise"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 7, 11])
def test_any_number_of_shards_gives_the_same(shards: int, causal: bool, other: Any) -> None:
    """Outputs and gradients; with 7 shards places of one key and idle ones for queries, with 11 idle ones for both."""
    config, inputs = Config(shards=shards, causal=causal), masked()
    want, limits = bounded(replace(other, causal=causal), inputs), bounded(config, inputs)
    for tree in (TREES["numpy"], TREES["torch"]):
        layer = layer_of(tree, config)
        found = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 5, 11)))
        for name, x in found.items():
            assert ratio(x, ErrArray(want[name].v, want[name].b + limits[name].b)) <= 1, (tree.name, name)


def test_torch_scaled_dot_product_attention() -> None:
    inputs = masked()
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    y = scaled_dot_product_attention(q, k, v, torch.from_numpy(inputs["mask"]))
    want = bounded(Config(shards=3), inputs)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v).items():
        assert ratio(grad, want[name]) <= 1, name


# The way around the ring ----------------------------------------------------------------------------------------------


def test_each_place_meets_its_own_keys_first_and_then_those_of_the_places_before(tree: Tree) -> None:
    """Scores alike and values 1, 2, 4 of three shards: after each step the sums say whose keys have come by."""
    inputs = {"query": np.zeros((1, 3, 2)), "key": normal(1, 3, 2), "value": np.array([[[1.0], [2.0], [4.0]]])}
    (y,), tape = tree.trace(layer_of(tree, Config(shards=3)), inputs)
    assert tape["running_sums"][0, :, :, 0, 0].tolist() == [[1.0, 2.0, 4.0], [5.0, 3.0, 6.0], [7.0, 7.0, 7.0]]
    assert tape["running_total"][0, :, :, 0].tolist() == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert not {"scores", "probs", "kept"} & set(tape)
    assert y.shape == (1, 3, 1)


def test_causal_places_wait_for_the_keys_they_may_see(tree: Tree) -> None:
    """The first place sees its own keys alone: what comes by later belongs to its future."""
    inputs = {"query": np.zeros((1, 4, 2)), "value": np.array([[[1.0], [3.0], [5.0], [11.0]]])}
    inputs["key"] = normal(1, 4, 2)
    (y,), tape = tree.trace(layer_of(tree, Config(shards=2, causal=True)), inputs)
    assert tape["running_total"][0, 0].tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert tape["running_total"][0, 1].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert y[0, :, 0].tolist() == [1.0, 2.0, 3.0, 5.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_overflow_are_not_zeros(tree: Tree) -> None:
    """A query whose only scores are -inf has no answer and says so; one that sees nothing has the answer 0."""
    inputs = {"query": np.array([[[1e200], [1.0]]]), "key": np.full((1, 3, 1), -1e200), "value": np.ones((1, 3, 1))}
    inputs["mask"] = np.array([[[True] * 3, [False] * 3]])
    (y,) = tree(layer_of(tree, Config(shards=2)), inputs)
    assert np.isnan(y[0, 0]).all()
    assert y[0, 1].tolist() == [0.0]


def test_fields_that_cannot_be(tree: Tree) -> None:
    with pytest.raises(ValueError, match="ring: expected shards to be an integer of at least 1, got 0"):
        tree.package.build("ring", shards=0)
