"""Middles that take rows of queries block by block, before the judge: in blocks so small that edges fall everywhere."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from attn_np import contract, value_and_vjp
from parity_tests.bounds.precision import fast_precision_of
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import TREES, flat, random_inputs
from parity_tests.tests.witness import cotangent, layer_of, weights_of

VARIANTS = ("alibi", "t5_bias", "shaw", "transformer_xl", "disentangled", "talking_heads", "differential")
VARIANTS += ("sigmoid_attention", "sparsemax", "entmax15", "hard")
SMALL = {"ROWS": 3, "FEW": 0, "BLOCK": 40, "CPU_BLOCK": 40, "PARTS": 2}
T, S = 11, 13


def ratios(tree: str, variant: str, example: str) -> dict[str, float]:
    """Error/bound of every output and gradient of a layer whose blocks are small."""
    config = contract.examples(variant)[example]
    config = replace(config, dropout=0.0)
    inputs: Any = random_inputs(config, "full", t=T, s=S)
    params = weights_of(config)
    inputs.pop("keep", None)
    case, precision = Case(variant, "", "", "float64", given=config), fast_precision_of(tree, "float64")
    outputs, grads = reference(case, Drawn(inputs, params, 0), {}, precision)
    layer: Any = layer_of(TREES[tree], config, params)
    if tree == "numpy":
        y, pull = value_and_vjp(layer, **inputs)
        back = pull(cotangent(y.shape))
        found = {"y": y} | {f"d{name}": x for name, x in (back.inputs | back.params).items()}
    else:
        given = TREES[tree].arrays(inputs)
        leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
        leaves |= dict(layer.named_parameters())
        y = flat(layer(**given))[0]
        y.backward(TREES[tree].array(cotangent(tuple(y.shape))))
        found = {"y": TREES[tree].numpy(y)}
        found |= {f"d{name}": TREES[tree].numpy(x.grad) for name, x in leaves.items() if x.grad is not None}
    bounds = outputs | grads
    return {name: compare(x, bounds[name], "float64" if name == "y" else None)["ratio"] for name, x in found.items()}


def in_small_blocks(patch: pytest.MonkeyPatch, tree: str) -> Any:
    rows = import_module({"numpy": "attn_np", "torch": "attn_torch"}[tree] + "._rows")
    for name, n in SMALL.items():
        patch.setattr(rows, name, n, raising=False)
    return rows


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_of_rows_keep_the_bounds(tree: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, tree)
    for example in contract.examples(variant):
        found = ratios(tree, variant, example)
        assert found and all(ratio <= 1 for ratio in found.values()), (example, found)


def a_key_too_few(patch: pytest.MonkeyPatch, rows: Any) -> None:
    keys = rows.Band.keys
    skipped = lambda band, queries: keys(band, queries)._replace(start=keys(band, queries).start + 1)  # noqa: E731
    patch.setattr(rows.Band, "keys", skipped)


def an_edge_without_its_mask(patch: pytest.MonkeyPatch, rows: Any) -> None:
    patch.setattr(rows.Band, "covers", lambda *given: True)


def positions_from_the_block_on(patch: pytest.MonkeyPatch, rows: Any) -> None:
    near = rows.in_window
    patch.setattr(rows, "in_window", lambda at, keys, left, right: near(at - at[:, :1], keys, left, right))


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("plant", [a_key_too_few, an_edge_without_its_mask, positions_from_the_block_on])
def test_a_planted_bug_is_seen(tree: str, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, in_small_blocks(monkeypatch, tree))
    found = ratios(tree, "sigmoid_attention", "causal")
    assert not all(ratio <= 1 for ratio in found.values()), found
