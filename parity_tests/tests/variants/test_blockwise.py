"""Blockwise attention against scalar loops, the softmax over all keys at once, and PyTorch's own function."""

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np.contract import dot_product
from attn_np.contract.blockwise import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, stacked, torch_gradients

# Scalar loops: algorithm 3 of Milakov and Gimelshein, one key at a time -----------------------------------------------


def loops(config: Config, query: Any, key: Any, value: Any, mask: Any) -> tuple[Any]:
    """Outputs of one batch row: the first key opens the sums, every later one is added to them."""
    scale = 1 / sqrt(len(query[0])) if config.scale is None else config.scale
    y = []
    for i, asked in enumerate(query):
        found: tuple[float, float, list[float]] | None = None
        for j, answer in enumerate(key):
            if not mask[i][j] or (config.causal and j > i + len(key) - len(query)):
                continue
            score = scale * sum(a * b for a, b in zip(asked, answer, strict=True))
            if found is None:
                found = score, 1.0, value[j]
                continue
            most, total, sums = found
            higher = max(most, score)
            old, new = exp(most - higher), exp(score - higher)
            found = higher, total * old + new, [a * old + x * new for a, x in zip(sums, value[j], strict=True)]
        y.append([0.0] * len(value[0]) if found is None else [a / found[1] for a in found[2]])
    return (y,)


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    mask = np.broadcast_to(inputs.get("mask", True), (*query.shape[:2], key.shape[1]))
    rows = zip(*(x.tolist() for x in (query, key, value, mask)), strict=True)
    return stacked([loops(config, *row) for row in rows], "y")


# This variant with every size of a block is that one ------------------------------------------------------------------


def masked() -> Arrays:
    """Queries and keys of different lengths, a query that sees nothing, one that sees nothing but the last key."""
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.6
    mask[1, 3] = mask[0, 2] = False
    mask[0, 2, 6] = True
    return {"query": normal(2, 5, 3), "key": normal(2, 7, 3), "value": normal(2, 7, 11), "mask": mask}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_any_block_size_is_dot_product(size: int, causal: bool) -> None:
    """Outputs and gradients within the bounds of either: blocks of one key, a last block of one, one block for all."""
    config, inputs = Config(block_size=size, causal=causal), masked()
    want, got = bounded(dot_product.Config(causal=causal), inputs), bounded(config, inputs)
    assert set(got) == set(want) - {"out1"}
    for tree in (TREES["numpy"], TREES["torch"]):
        layer = layer_of(tree, config)
        found = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 5, 11)))
        for name, x in found.items():
            assert ratio(x, ErrArray(want[name].v, want[name].b + got[name].b)) <= 1, (tree.name, name)


def test_torch_scaled_dot_product_attention() -> None:
    inputs = masked()
    q, k, v = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "key", "value"))
    y = scaled_dot_product_attention(q, k, v, torch.from_numpy(inputs["mask"]))
    want = bounded(Config(block_size=2), inputs)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=q, key=k, value=v).items():
        assert ratio(grad, want[name]) <= 1, name


# Numbers known beforehand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_scores_that_rise_and_fall_by_far(tree: Tree, size: int) -> None:
    """Scores 2^12 apart: only the largest counts, wherever it stands, exactly; of two equal ones the mean."""
    key = np.array([[[0.0], [4096.0], [-8192.0], [4096.0], [1024.0]]])
    value = np.array([[[1.0], [3.0], [7.0], [5.0], [11.0]]])
    inputs = {"query": np.array([[[1.0], [-1.0]]]), "key": key, "value": value}
    (y,) = tree(layer_of(tree, Config(block_size=size, scale=1.0)), inputs)
    assert y.tolist() == [[[4.0], [7.0]]]


def test_running_numbers_end_at_those_of_all_keys(tree: Tree) -> None:
    """The tape has the largest score and the sum after every block; the last ones are those of the whole softmax."""
    inputs = {"query": np.zeros((1, 2, 3)), "key": normal(1, 5, 3)}
    inputs["value"] = np.arange(5.0).reshape(1, 5, 1)
    _, tape = tree.trace(layer_of(tree, Config(block_size=2)), inputs)
    assert tape["running_top"].tolist() == [[[0.0] * 2] * 3]
    assert tape["running_total"].tolist() == [[[2.0] * 2, [4.0] * 2, [5.0] * 2]]
    assert tape["running_sums"].tolist() == [[[[1.0]] * 2, [[6.0]] * 2, [[10.0]] * 2]]
    assert tape["total"].tolist() == [[5.0, 5.0]]
    assert not {"scores", "probs", "kept"} & set(tape)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_overflow_are_not_zeros(tree: Tree) -> None:
    """A query whose only scores are -inf has no answer and says so; one that sees nothing has the answer 0."""
    inputs = {"query": np.array([[[1e200], [1.0]]]), "key": np.full((1, 3, 1), -1e200), "value": np.ones((1, 3, 1))}
    inputs["mask"] = np.array([[[True] * 3, [False] * 3]])
    (y,) = tree(layer_of(tree, Config(block_size=2)), inputs)
    assert np.isnan(y[0, 0]).all()
    assert y[0, 1].tolist() == [0.0]


def test_fields_that_cannot_be(tree: Tree) -> None:
    with pytest.raises(ValueError, match="blockwise: expected block_size to be an integer of at least 1, got 0"):
        tree.package.build("blockwise", block_size=0)
