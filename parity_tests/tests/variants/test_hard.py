"""Hard attention against scalar loops, known numbers and the frameworks' own straight-through draw."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from attn_np.contract.hard import EXAMPLES, Config
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.judging import DEVIATIONS
from parity_tests.tests.inputs import Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    of_heads,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops ---------------------------------------------------------------------------------------------------------


def first_of_the_largest(scores: list[float | None]) -> list[float]:
    """1 for the score that no other passes and no earlier one reaches."""
    best = None
    for j, x in enumerate(scores):
        here = None if best is None else scores[best]
        if x is not None and (here is None or x > here):
            best = j
    return [float(j == best) for j in range(len(scores))]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    shift = np.zeros(shape) + inputs.get("bias", 0.0) + inputs.get("noise", 0.0)
    config, rows = each_row(config, inputs | {"bias": shift}, (query, key, value), shape)
    w: Any = {name: p.tolist() for name, p in params.items()}
    found = [of_heads(config, w, row[:3], row[3:], lambda _, scores: first_of_the_largest(scores)) for row in rows]
    return stacked(found, "y", "out1")


# What is chosen -------------------------------------------------------------------------------------------------------


def silent(**fields: Any) -> tuple[Config, Arrays]:
    """A layer whose scores are all 0, so that bias and noise decide."""
    config = Config(d_model=7, num_heads=2, head_dim=3, **fields)
    return config, {name: x * (name not in ("w_q", "b_q")) for name, x in weights_of(config).items()}


def test_the_first_of_equals_is_chosen(tree: Tree) -> None:
    """All equal: the first in sight. The weights are 0 and 1 to the bit, whatever the gradient comes from."""
    for fields in ({}, {"estimator": "argmax"}, {"temperature": 0.3}):
        config, weights = silent(**fields)
        mask = np.array([[True, True, True], [False, True, True], [False, False, False]])
        _, got = tree(layer_of(tree, config, weights), {"query": normal(2, 3, 7), "mask": mask}, return_weights=True)
        assert np.array_equal(got, np.broadcast_to([[1, 0, 0], [0, 1, 0], [0, 0, 0]], got.shape))


def test_noise_that_is_gumbels_draws_by_the_softmax(tree: Tree) -> None:
    """Counts of the chosen keys lie within the deviation that one in 2^40 normal numbers exceeds."""
    config, weights = silent()
    p, n = np.array([0.5, 0.25, 0.15, 0.07, 0.03]), 2000
    noise = -np.log(-np.log(np.random.default_rng(5).random((n, 2, 5, 5))))
    inputs = {"query": np.broadcast_to(normal(1, 5, 7), (n, 5, 7)).copy(), "bias": np.log(p), "noise": noise}
    _, got = tree(layer_of(tree, config, weights), inputs, return_weights=True)
    draws = n * 2 * 5
    assert np.all(np.abs(got.sum((0, 1, 2)) - draws * p) <= DEVIATIONS * np.sqrt(draws * p * (1 - p)))


def test_pytorchs_gumbel_softmax() -> None:
    """With its draw as our noise the same keys are chosen, and the scores get the same gradient."""
    config, weights = silent(temperature=0.75)
    logits, query = normal(2, 2, 5, 5), normal(2, 5, 7)
    leaf = torch.from_numpy(logits).requires_grad_()
    torch.manual_seed(3)
    hard = functional.gumbel_softmax(leaf, tau=0.75, hard=True)
    torch.manual_seed(3)
    noise = -torch.empty_like(leaf).exponential_().log()
    inputs = {"query": query, "bias": logits, "noise": noise.detach().numpy()}
    want = bounded(config, inputs, weights)
    assert ratio(np.round(hard.detach().numpy()), want["out1"]) <= 1
    w = {name: torch.from_numpy(x) for name, x in weights.items()}
    v = torch.einsum("bsd,dhv->bshv", torch.from_numpy(query), w["w_v"]) + w["b_v"]
    y = torch.einsum("bhts,bshv,hvd->btd", hard, v, w["w_o"]) + w["b_o"]
    (grad,) = torch.autograd.grad(y, leaf, torch.from_numpy(dy_of(y)))
    assert ratio(grad.numpy(), want["dbias"]) <= 1
    assert ratio(grad.numpy(), want["dnoise"]) <= 1


def dy_of(y: torch.Tensor) -> np.ndarray:
    return cotangent(tuple(y.shape))


def test_the_argmax_passes_nothing_back(tree: Tree) -> None:
    """Queries and keys get no gradient, neither as inputs nor as weights; the values do."""
    config, example = EXAMPLES["argmax"], Case("hard", "argmax", "full", "float64")
    inputs = {n: x for n, x in draw(example).inputs.items() if n != "keep"}
    layer = layer_of(tree, config, weights_of(config))
    grads = tree.gradients(layer, inputs, normal(*inputs["query"].shape))
    still = {"query", "key", "bias", "noise", "w_q", "w_k", "b_q", "b_k"}
    for name, x in grads.items():
        assert np.any(x) == (name.removeprefix("d") not in still), name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"estimator": "soft"}, "expected estimator to be one of straight_through, argmax, got 'soft'"),
        ({"temperature": 0.0}, "expected temperature to be a finite int or float above 0.0, got 0.0"),
        ({"temperature": None}, "expected temperature to be a finite int or float above 0.0, got None"),
        ({"temperature": 2.0, "estimator": "argmax"}, "expected temperature=1.0 with estimator='argmax', got"),
    ],
)
def test_fields_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(d_model=7, num_heads=2, head_dim=3, **fields)
