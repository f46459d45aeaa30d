"""Middles that take rows of queries block by block, before the judge: in blocks so small that edges fall everywhere."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract, value_and_vjp
from parity_tests.bounds.precision import fast_precision_of
from parity_tests.judge import kernels
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference
from parity_tests.judge.kernels import visible
from parity_tests.tests.inputs import TREES, Arrays, flat, random_inputs
from parity_tests.tests.mutation import checks_rows as whole_numbers
from parity_tests.tests.witness import cotangent, layer_of, weights_of

BY_DISTANCE = ("t5_bias", "shaw", "transformer_xl", "disentangled")
VARIANTS = ("alibi", *BY_DISTANCE, "talking_heads", "differential")
VARIANTS += ("sigmoid_attention", "entmax_attention", "hard")
VARIANTS += ("additive", "luong", "cope")
SMALL = {"MIN_ROWS": 3, "ONE_BLOCK_SCORES": 0, "BLOCK_SCORES": 4, "CPU_BLOCK_SCORES": 4, "CAUSAL_LOOPS": 2}
T, S = 11, 13


def ratios(
    tree: str,
    variant: str,
    example: str,
    shared: tuple[int, ...] = (),
    t: int = T,
    s: int = S,
    dropout: float = 0.0,
    omitted: tuple[str, ...] = (),
    rank: int = 4,
) -> dict[str, float]:
    """Error/bound of every output and gradient of an example's layer, whose mask and bias have length 1 on some axes,
    counted from the last, and no more axes than `rank`; some arguments are left out.
    """
    config = replace(contract.examples(variant)[example], dropout=dropout)
    omitted = omitted if dropout else ("keep", *omitted)
    inputs = {name: x for name, x in random_inputs(config, "full", t=t, s=s).items() if name not in omitted}
    for name in {"mask", "bias"} & set(inputs):
        for axis in shared:
            inputs[name] = inputs[name].take([0], axis) if -axis <= inputs[name].ndim else inputs[name]
        inputs[name] = inputs[name][(0,) * (inputs[name].ndim - rank)]
    return layer_ratios(tree, config, inputs)


def layer_ratios(tree: str, config: Any, inputs: Arrays) -> dict[str, float]:
    """Error/bound of every output and gradient of a layer whose blocks are small."""
    params, given = weights_of(config), dict[str, Any](inputs)
    case, precision = Case(config.variant, "", "", "float64", given=config), fast_precision_of(tree, "float64")
    outputs, grads = reference(case, Drawn(given, params, 0), {}, precision)
    layer: Any = layer_of(TREES[tree], config, params)
    if tree == "numpy":
        y, pull = value_and_vjp(layer, **given)
        back = pull(cotangent(y.shape))
        found = {"y": y} | {f"d{name}": x for name, x in (back.inputs | back.params).items()}
    elif tree == "jax":
        found = found_in_jax(layer, TREES[tree].arrays(inputs))
    else:
        arrays = TREES[tree].arrays(inputs)
        leaves = {name: x.requires_grad_() for name, x in arrays.items() if x.is_floating_point()}
        leaves |= dict(layer.named_parameters())
        y = flat(layer(**arrays))[0]
        y.backward(TREES[tree].array(cotangent(tuple(y.shape))))
        found = {"y": TREES[tree].numpy(y)}
        found |= {f"d{name}": TREES[tree].numpy(x.grad) for name, x in leaves.items() if x.grad is not None}
    bounds = outputs | grads
    return {name: compare(x, bounds[name], "float64" if name == "y" else None)["ratio"] for name, x in found.items()}


def found_in_jax(layer: Any, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """The output of a layer, and the gradients of its inputs and parameters."""
    graph, state, others = nnx.split(layer, nnx.Param, ...)
    floats = {name: x for name, x in arrays.items() if x.dtype.kind == "f"}
    rest = {name: x for name, x in arrays.items() if name not in floats}

    @jax.jit
    def both(floats: Any, state: Any) -> Any:
        y, pull = jax.vjp(
            lambda floats, state: flat(nnx.merge(graph, state, others)(**floats, **rest))[0], floats, state
        )
        return y, *pull(jax.numpy.asarray(cotangent(y.shape)))

    y, dfloats, dstate = both(floats, state)
    grads = dfloats | {".".join(map(str, path)): x.get_value() for path, x in nnx.to_flat_state(dstate)}
    return {"y": np.asarray(y)} | {f"d{name}": np.asarray(x) for name, x in grads.items()}


def in_small_blocks(patch: pytest.MonkeyPatch, tree: str) -> Any:
    rows = import_module(f"{TREES[tree].package.__name__}.attention.row_blocks")
    for name, n in SMALL.items():
        patch.setattr(rows, name, n, raising=False)
    weigh = import_module(f"{TREES[tree].package.__name__}.kernels.weigh")
    small = {"BLOCK_SCORES": 4, "MIN_QUERIES": 3} if tree == "jax" else {"SCORES_PER_MAXIMUM": 3}
    for name, n in (small | {"BLOCK_KEYS": 4}).items():
        patch.setattr(weigh, name, n)
    return rows


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_of_rows_keep_the_bounds(tree: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, tree)
    for i, example in enumerate(contract.examples(variant)):
        for shared in ((), (-4, -1) if i % 2 else (-4, -2), (-3,))[: 3 if i < 2 else 1]:
            found = ratios(tree, variant, example, shared)
            assert found and all(ratio <= 1 for ratio in found.values()), (example, shared, found)
        found = ratios(tree, variant, example, omitted=("mask", "bias"))
        assert found and all(ratio <= 1 for ratio in found.values()), (example, "without a mask", found)
    found = ratios(tree, variant, next(iter(contract.examples(variant))), rank=1)
    assert found and all(ratio <= 1 for ratio in found.values()), ("keys alone", found)


# Queries, keys and dropout, with which rows go block by block where other paths take all.
APART = {
    "more queries": (13, 5, 0.0),
    "more queries and dropout": (13, 5, 0.25),
    "more keys": (5, 13, 0.0),
    "more keys and dropout": (5, 13, 0.25),
}


def ratios_apart(tree: str, variant: str, example: str, row: str) -> dict[str, float]:
    """The `ratios` of a row of `APART`, with the fast path in small blocks as well."""
    t, s, dropout = APART[row]
    with kernels.blocks(TREES[tree].package.__name__, kernels.SMALL[tree][0]):
        return ratios(tree, variant, example, t=t, s=s, dropout=dropout)


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("variant", BY_DISTANCE)
def test_the_last_query_stands_at_the_last_key(tree: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, tree)
    for example, row in product(contract.examples(variant), APART):
        found = ratios_apart(tree, variant, example, row)
        assert found and all(ratio <= 1 for ratio in found.values()), (example, row, found)


@pytest.mark.parametrize("row", APART)
@pytest.mark.parametrize("variant", BY_DISTANCE)
def test_the_last_query_stands_there_in_jax(variant: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default one row: JAX compiles each."""
    in_small_blocks(monkeypatch, "jax")
    found = ratios_apart("jax", variant, "cross", row)
    assert found and all(ratio <= 1 for ratio in found.values()), found


# Masks and biases that heads, queries or keys share; without them every example is asked.
SHARED = {"causal": ((), (-4, -1), (-3,)), "fixed": ((), (-4, -2)), "whole": ((), (-2, -1))}


@pytest.mark.parametrize("example", SHARED)
def test_flaxs_blocks_of_keys_keep_the_bounds(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In JAX a sigmoid's blocks have some of the keys that their queries see."""
    in_small_blocks(monkeypatch, "jax")
    for shared in SHARED[example]:
        found = ratios("jax", "sigmoid_attention", example, shared)
        assert found and all(ratio <= 1 for ratio in found.values()), (shared, found)
    config = replace(contract.examples("sigmoid_attention")[example], dropout=0.0)
    names = [name for name in config.arguments() if name not in ("mask", "bias", "keep")]
    for t, s in ((T, S), (S, T)):
        found = layer_ratios("jax", config, random_inputs(config, names, t=t, s=s))
        assert found and all(ratio <= 1 for ratio in found.values()), (t, s, found)


@pytest.mark.parametrize(
    ("tree", "variant"),
    [
        *product(("numpy", "torch"), ("sigmoid_attention", "entmax_attention")),
        ("jax", "sigmoid_attention"),
    ],
)
def test_hidden_scores_may_overflow(tree: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some queries and some keys are so large that their scores are infinite, or the difference of infinities: pairs of
    them are hidden, and what they see beside each other is not.
    """
    in_small_blocks(monkeypatch, tree)
    for example in contract.examples(variant):
        config = replace(contract.examples(variant)[example], dropout=0.0)
        names = [name for name in config.arguments() if name not in ("keep", "bias")]
        inputs = random_inputs(config, names, t=T, s=T if "key" not in names else S)
        rng = np.random.default_rng([len(variant), len(example)])
        b, s = len(inputs["query"]), inputs.get("key", inputs["query"]).shape[1]
        queries, keys = rng.random((b, T)) < 0.3, rng.random((b, s)) < 0.3
        if "key" not in inputs:
            queries = keys
        allowed = ~(queries[:, :, None] & keys[:, None])
        inputs["mask"] = inputs["mask"] & (allowed[:, None] if inputs["mask"].ndim == 4 else allowed)
        for name, places in {"query": queries, "key": keys}.items():
            if name in inputs:
                inputs[name] = np.where(places[..., None], 1e200 * np.sign(inputs[name]), inputs[name])
        with np.errstate(all="ignore"):
            found = layer_ratios(tree, config, inputs)
        assert found and all(ratio <= 1 for ratio in found.values()), (example, found)


def a_key_too_few(patch: pytest.MonkeyPatch, rows: Any) -> None:
    keys = rows.Band.keys
    skipped = lambda band, queries: keys(band, queries)._replace(start=keys(band, queries).start + 1)  # noqa: E731
    patch.setattr(rows.Band, "keys", skipped)


def an_edge_without_its_mask(patch: pytest.MonkeyPatch, rows: Any) -> None:
    patch.setattr(rows.Band, "covers", lambda *given: True)


def positions_from_the_block_on(patch: pytest.MonkeyPatch, rows: Any) -> None:
    near = rows.in_window
    for room in (rows, import_module(rows.__name__.replace("attention.row_blocks", "kernels.weigh"))):
        patch.setattr(room, "in_window", lambda at, keys, left, right: near(at - at[:, :1], keys, left, right))


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize("plant", [a_key_too_few, an_edge_without_its_mask, positions_from_the_block_on])
@pytest.mark.parametrize(("variant", "example"), [("sigmoid_attention", "causal"), ("hard", "causal")])
def test_a_planted_bug_is_seen(
    tree: str, plant: Callable[..., None], variant: str, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, in_small_blocks(monkeypatch, tree))
    found = ratios(tree, variant, example)
    assert not all(ratio <= 1 for ratio in found.values()), found


def a_block_of_keys_too_few(patch: pytest.MonkeyPatch, weigh: Any) -> None:
    key_block_range = weigh.SigmoidPlan.key_block_range
    patch.setattr(
        weigh.SigmoidPlan,
        "key_block_range",
        lambda plan, i: (key_block_range(plan, i)[0] + 1, key_block_range(plan, i)[1]),
    )


def all_keys_counted(patch: pytest.MonkeyPatch, weigh: Any) -> None:
    counts = weigh._key_counts
    patch.setattr(weigh, "_key_counts", lambda plan, *masks: 0 * counts(plan, *masks) + plan.band.s)


def positions_of_the_first_block(patch: pytest.MonkeyPatch, weigh: Any) -> None:
    positions = weigh.SigmoidPlan.query_positions
    patch.setattr(weigh.SigmoidPlan, "query_positions", lambda plan, i: positions(plan, 0 * i))


def gradients_of_the_first_keys(patch: pytest.MonkeyPatch, weigh: Any) -> None:
    add_at = weigh.add_at
    patch.setattr(weigh, "add_at", lambda x, start, y: add_at(x, (*start[:3], 0), y))


@pytest.mark.parametrize(
    "plant", [a_block_of_keys_too_few, all_keys_counted, positions_of_the_first_block, gradients_of_the_first_keys]
)
def test_a_bug_planted_in_flaxs_blocks_of_keys_is_seen(
    plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_blocks(monkeypatch, "jax")
    plant(monkeypatch, import_module("attn_jax.kernels.weigh"))
    jax.clear_caches()  # what was compiled before has no bug, and what is now must not stay
    found = ratios("jax", "sigmoid_attention", "causal")
    jax.clear_caches()
    assert not all(ratio <= 1 for ratio in found.values()), found


# Whole numbers --------------------------------------------------------------------------------------------------------


def middle_of(tree: str) -> Callable[..., Any]:
    """That of `whole_numbers`, of a tree's own functions."""
    ops = import_module(f"{TREES[tree].package.__name__}.ops")

    def middle(tape: Any, q: Any, k: Any, v: Any, allowed: Any, relative_position: Any, bias: Any, keep: Any) -> Any:
        weights = ops.einsum("bthk,bshk->bhts", q, k) + ops.diagonals_to_pairs(
            relative_position[:, None], q.shape[1], k.shape[1]
        )
        weights = weights if bias is None else weights + bias
        for x in (allowed, keep):
            weights = weights if x is None else ops.where(x, weights, 0.0)
        return ops.einsum("bhts,bshv->bthv", weights, v), weights

    return middle


def found_by(tree: str, rows: Any, arrays: Arrays, options: Any) -> Arrays:
    """The context and the gradients of q, k, v and the bias, by a tree's automatic differentiation."""
    floats = {name: x for name, x in arrays.items() if x.dtype == np.float64}
    rest = {name: x for name, x in arrays.items() if name not in floats}
    others: Any = dict.fromkeys(("mask", "bias", "keep")) | TREES[tree].arrays(rest) | options

    def call(floats: Any) -> Any:
        return rows.attend_in_row_blocks(middle_of(tree), None, **others | floats)[0]

    if tree == "torch":
        leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in floats.items()}
        context = call(leaves)
        dy = whole_numbers.whole(np.random.default_rng(7), *context.shape)
        grads = torch.autograd.grad(context, list(leaves.values()), torch.from_numpy(dy))
        found = {"context": context.detach()} | {f"d{name}": x for name, x in zip(leaves, grads, strict=True)}
        return {name: x.numpy() for name, x in found.items()}

    @jax.jit
    def everything(floats: Any) -> Any:
        context, pull = jax.vjp(call, floats)
        return context, pull(whole_numbers.whole(np.random.default_rng(7), *context.shape))[0]

    context, grads = everything(floats)
    return {"context": np.asarray(context)} | {f"d{name}": np.asarray(x) for name, x in grads.items()}


def wanted(arrays: Arrays, seen: np.ndarray, relative_position: np.ndarray) -> Arrays:
    """The same for all rows at once, by hand, where these pairs see each other."""
    q, k, v, bias, keep = (arrays.get(name) for name in ("q", "k", "v", "bias", "keep"))
    tape: Any = {}
    context, _ = whole_numbers.Middle()(tape, q, k, v, seen, relative_position, bias, keep)
    grads = whole_numbers.backward(tape, whole_numbers.whole(np.random.default_rng(7), *context.shape))
    return {"context": context} | {f"d{name}": grads[name] for name in ("q", "k", "v", "bias") if name in arrays}


CASES = [
    (form, limits, s)
    for i, form in enumerate(whole_numbers.FORMS)
    for j, limits in enumerate(whole_numbers.LIMITS)
    for n, s in enumerate((4, 9, 13))
    if (i + j) % 3 == n
]


@pytest.mark.parametrize("tree", ["torch", "jax"])
def test_blocks_of_rows_are_all_rows_at_once(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, of whole numbers. In JAX, which compiles each, one call in six."""
    rows, t, h = in_small_blocks(monkeypatch, tree), whole_numbers.T, whole_numbers.H
    for form, (causal, window), s in CASES[:: 7 if tree == "jax" else 1]:
        arrays = whole_numbers.drawn(s, form)
        seen = visible(arrays.get("mask"), (whole_numbers.B, h, t, s), causal, window)
        want = wanted(arrays, seen, np.arange(s)[None, None] - np.arange(t)[None, :, None] - (s - t))
        found = found_by(tree, rows, arrays, {"causal": causal, "window": window})
        for name, x in want.items():
            assert np.array_equal(found[name], x), (name, form, causal, window, s)


@pytest.mark.parametrize("tree", ["torch", "jax"])
def test_a_step_says_itself_who_sees_whom(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So all rows go at once."""
    rows, arrays, s = in_small_blocks(monkeypatch, tree), whole_numbers.drawn(13, "pairs"), 13
    step: Any = whole_numbers.Step(None)
    positions, seen = (step.query_positions, step.key_positions), step.window_mask(None, 0)
    assert seen.shape[-1] == s
    step.query_positions, step.key_positions = (TREES[tree].array(x) for x in positions)
    monkeypatch.setattr(step, "window_mask", lambda left, right: TREES[tree].array(seen))
    found = found_by(tree, rows, arrays, {"causal": True, "step": step})
    relative_position = positions[1][:, None] - positions[0][:, :, None]
    for name, x in wanted(arrays, seen & arrays["mask"], relative_position).items():
        assert np.array_equal(found[name], x), name


@pytest.mark.parametrize("tree", TREES)
def test_blocks_without_heads_are_those_of_one_head(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the queries are, which then stand where heads would."""
    rows, lengths = import_module(f"{TREES[tree].package.__name__}.attention.row_blocks"), list[list[int]]()
    for name in {"ONE_BLOCK_SCORES", "BLOCK_SCORES", "CPU_BLOCK_SCORES"} & set(vars(rows)):
        monkeypatch.setattr(rows, name, 8 * S)

    def attend_rows(tape: Any, q: Any, *others: Any, **arrays: Any) -> tuple[Any, None]:
        lengths[-1].append(q.shape[1])
        return q, None

    for heads in ((), (1,)):
        lengths.append([])
        q, k, v = (TREES[tree].array(np.zeros((1, n, *heads, 5))) for n in (T, S, S))
        options: Any = {"mask": None, "bias": None, "keep": None, "min_rows": 1}
        rows.attend_in_row_blocks(attend_rows, None, q, k, v, **options)
    without, one_head = lengths
    assert without == one_head and max(one_head) in (6, 8)  # in JAX blocks of equal length
