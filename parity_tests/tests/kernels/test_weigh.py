"""Weights in place that are no softmax, before the judge: rows of every kind, and a few bugs to be seen."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attn_torch
from attn_np import contract
from attn_np.contract._band import Band
from attn_np.contract._weighing import Weighing
from parity_tests.judge.judging import compare
from parity_tests.tests.inputs import TREES, first_difference
from parity_tests.tests.kernels.test_kernels_np import InTurn
from parity_tests.tests.kernels.test_rows import in_small_blocks, ratios
from parity_tests.tests.mutation.checks_weigh import masks, rows, wanted
from parity_tests.tests.witness import cotangent

NAMES = {"sigmoid": "sigmoid_attention", "sparsemax": "sparsemax", "entmax15": "entmax15"}
VARIANTS = NAMES | {"softmax": "talking_heads"}


def weights_of(tree: str, name: str, scores: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """By a tree's function in place."""
    room = import_module(f"{TREES[tree].package.__name__}.kernels.weigh")
    array = TREES[tree].array(scores.copy())
    with np.errstate(all="ignore"):
        room.weigh_(Weighing(name, 1.0, None, 0.5), array, None if allowed is None else TREES[tree].array(allowed))
    return TREES[tree].numpy(array)


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_every_kind_get_the_textbooks_weights(tree: str, name: str) -> None:
    scores = np.stack(list(rows().values()))
    for allowed in masks():
        found = compare(weights_of(tree, name, scores, allowed), wanted(name, scores, allowed))
        assert found["ratio"] <= 1, (list(rows())[found["index"][0]], found)


@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_threads_in_any_order_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one writes no other reads or writes; heads that share a bias are one thread's, and all that share maps."""
    room, rng, band = import_module("attn_np.kernels.weigh"), np.random.default_rng(0), Band.of(7, 9, False, None)
    q, k, v = (rng.normal(size=(3, n, 2, 4)) for n in (7, 9, 9))
    blocks, maps = tuple(band.row_blocks(18, 2)), (rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
    bias = rng.normal(size=(1, 2, 7, 9))
    call = room.WeighingCall(
        Weighing(name, 1.0, None, 0.5), q, k, v, None, bias, band, blocks, *(maps if name == "softmax" else ())
    )
    tasks: list[Any] = []
    turns, weigh_ = InTurn(), room.weigh_

    def results() -> dict[str, Any]:
        return {"context": call.context()} | call.vjp(cotangent(q.shape))

    def one_by_one(work: Any, plan: Any) -> None:
        tasks.append(plan(3))
        for task in tasks[-1]:
            work(task)

    def handing_over(*given: Any) -> None:
        weigh_(*given)
        turns.hand_over()

    monkeypatch.setattr(room, "in_threads", one_by_one)
    want = results()
    shared = [head.start for task in tasks[1] for head in {head for _, head in task}]
    assert sorted(shared) == ([0, 1] if name == "sigmoid" else [0])
    monkeypatch.setattr(room, "in_threads", turns)
    monkeypatch.setattr(room, "weigh_", handing_over)
    assert first_difference(results(), want) is None


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_flaxs_steps_begin_where_those_of_the_groups_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.stack([np.tile(x, 2) for x in rows().values()])
    want = wanted(name, scores, None)
    sparse, room = import_module("attn_jax.normalizers.sparse"), import_module("attn_jax.normalizers.support")

    def ratio() -> float:
        return compare(np.asarray(getattr(sparse, name)(TREES["jax"].array(scores))), want)["ratio"]

    assert ratio() <= 1
    largest = jnp.max
    monkeypatch.setattr(room.jnp, "max", lambda x, *rest, **more: largest(x, *rest, **more) + (x.ndim > 2))
    assert not ratio() <= 1, "groups whose largest is too large"


def a_threshold_from_above(patch: pytest.MonkeyPatch, room: Any) -> None:
    step = room.threshold_from_below
    patch.setattr(room, "threshold_from_below", lambda z, tau, *rest: step(z, tau + 1.5, *rest))


def hidden_keys_counted(patch: pytest.MonkeyPatch, room: Any) -> None:
    real = room.key_counts
    patch.setattr(room, "key_counts", lambda allowed, *rest: real(None, *rest))


def weights_without_their_threshold(patch: pytest.MonkeyPatch, room: Any) -> None:
    def scores_vjp_(weighing: Weighing, weights: Any, dweights: Any) -> None:
        dweights *= weights > 0

    patch.setattr(room, "scores_vjp_", scores_vjp_)


def maps_the_other_way_round(patch: pytest.MonkeyPatch, room: Any) -> None:
    real = room.mix
    patch.setattr(
        room, "mix", lambda matrix, x, out: real(matrix.T if len(matrix) == len(matrix.T) else matrix, x, out)
    )


def a_softmax_that_forgets_its_sum(patch: pytest.MonkeyPatch, room: Any) -> None:
    real = room.scores_vjp_
    patch.setattr(room, "scores_vjp_", lambda weighing, p, dp: real(replace(weighing, name="sigmoid"), p, dp))


PLANTS = [
    (maps_the_other_way_round, "softmax"),
    (a_softmax_that_forgets_its_sum, "softmax"),
    (a_threshold_from_above, "sparsemax"),
    (a_threshold_from_above, "entmax15"),
    (hidden_keys_counted, "sigmoid"),
    (weights_without_their_threshold, "sparsemax"),
]


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize(("plant", "name"), PLANTS)
def test_a_planted_bug_is_seen(
    tree: str, plant: Callable[..., None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_blocks(monkeypatch, tree)
    plant(monkeypatch, import_module(f"{TREES[tree].package.__name__}.kernels.weigh"))
    variant = VARIANTS[name]
    found = [ratios(tree, variant, example) for example in contract.examples(variant)]
    assert not all(ratio <= 1 for each in found for ratio in each.values()), found


@pytest.mark.parametrize("tree", ["numpy", "torch"])
def test_few_scores_alone_are_looked_at(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threshold of the groups' largest scores is not above that of all; fewer scores than groups are above it."""
    room = import_module(f"{TREES[tree].package.__name__}.kernels.weigh")
    step, steps = room.threshold_from_below, []

    def watched(z: Any, tau: Any, *rest: Any) -> Any:
        before = np.array(TREES[tree].numpy(z)), np.array(TREES[tree].numpy(tau))
        found = step(z, tau, *rest)
        steps.append((*before, TREES[tree].numpy(found)))
        return found

    monkeypatch.setattr(room, "threshold_from_below", watched)
    weights_of(tree, "sparsemax", np.random.default_rng(0).normal(size=(4, 4096)), None)
    (_, _, of_groups), (scores, start, threshold) = steps
    assert np.array_equal(of_groups, start)
    assert (start <= threshold).all()
    assert ((scores > start).sum(1) < 4096 // room.SCORES_PER_MAXIMUM).all()


@pytest.mark.parametrize("name", ["sigmoid_attention", "sparsemax", "entmax15", "talking_heads"])
def test_a_second_derivative_of_rows_in_blocks_is_refused(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input alone, which an error at the leaves would not reach, and beside a residual, which would hide it."""
    in_small_blocks(monkeypatch, "torch")
    layer = attn_torch.build(name, d_model=6, num_heads=2, dtype="float64")
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 9, 6))).requires_grad_()
    (grad,) = torch.autograd.grad(((x + layer(x)) ** 2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="set implementation='textbook' or return_weights=True"):
        torch.autograd.grad(grad.sum(), x)
    y, _ = layer(x, return_weights=True)
    (grad,) = torch.autograd.grad(((x + y) ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert second.isfinite().all()
