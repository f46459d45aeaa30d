"""The fast paths of `attend`: every combination that they take, in blocks and whole, by the reference's bounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from attn_np.attention.attend import attend, attend_vjp
from attn_np.contract._tape import BackwardTape
from attn_np.kernels import flash as numpy_kernels
from attn_np.ops.vjp import sum_to
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.bounds.softmax import recompute
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import cotangent, ratio, torch_gradients

H, K, V = 6, 5, 3

# By name: arguments that are no arrays, the arrays beside q, k and v, key/value heads, queries and keys.
CASES: dict[str, tuple[dict[str, Any], str, int, int, int]] = {
    "full": ({}, "", 6, 11, 13),
    "one query": ({}, "padding", 2, 1, 13),
    "causal": ({"causal": True}, "", 3, 13, 13),
    "causal, more keys": ({"causal": True, "scale": 0.375}, "", 2, 7, 13),
    "causal, more queries": ({"causal": True}, "", 6, 13, 7),
    "window": ({"window": (3, 2)}, "", 2, 13, 13),
    "window before": ({"causal": True, "window": (4, None)}, "padding", 3, 11, 17),
    "window, far": ({"window": (0, 1)}, "", 6, 17, 5),
    "mask": ({}, "mask", 2, 11, 13),
    "padding": ({"causal": True}, "padding", 1, 13, 13),
    "bias": ({}, "bias", 3, 11, 13),
    "one bias": ({"window": (5, None)}, "one_bias", 2, 11, 13),
    "window, shared heads": ({"causal": True, "window": (1, None)}, "mask", 2, 11, 13),
    "softcap": ({"softcap": 1.5, "causal": True}, "", 3, 13, 13),
    "sinks": ({"causal": True}, "sinks", 2, 13, 13),
    "all": ({"causal": True, "window": (6, None), "softcap": 1.5, "scale": 0.75}, "mask bias sinks", 2, 11, 17),
}
# Scores as large as these are never safe from overflow without the largest being subtracted.
SIZES = {"small": 1.0, "large": 300.0}


def given(case: str, size: str = "small") -> tuple[Arrays, dict[str, Any]]:
    """Random arrays; with a mask one query sees nothing and one key is seen by nobody."""
    options, names, g, t, s = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes = {"q": (2, t, H, K), "k": (2, s, g, K), "v": (2, s, g, V)}
    found: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    found["q"] *= SIZES[size]
    for name in names.split():
        if name == "mask":
            found["mask"] = rng.random((2, H, t, s)) < 0.7
            found["mask"][0, :, 2] = found["mask"][1, :, :, 4] = False
        elif name == "padding":
            found["mask"] = np.arange(s) >= np.array([0, s // 3])[:, None, None, None]
        elif name == "sinks":
            found["sinks"] = rng.normal(size=H)
        else:
            found["bias"] = rng.normal(size=(2, H, t, s) if name == "bias" else (t, s))
            found["bias"][..., 1, :3] = -np.inf
    return found, options


def allowed(inputs: Arrays, options: dict[str, Any]) -> np.ndarray:
    """Who sees whom, `b h t s`, from the words of the contract: no code of the trees."""
    (b, t, h, _), s = inputs["q"].shape, inputs["k"].shape[1]
    left, right = options.get("window", (None, None))
    right = 0 if options.get("causal") else right
    ahead = np.arange(s) - (np.arange(t)[:, None] + s - t)
    found = np.broadcast_to(inputs.get("mask", True), (b, h, t, s))
    found = found if left is None else found & (ahead >= -left)
    found = found if right is None else found & (ahead <= right)
    return found & (inputs["bias"] != -np.inf) if "bias" in inputs else found


def numpy_results(inputs: dict[str, Any], dy: Any, options: dict[str, Any], implementation: str) -> dict[str, Any]:
    tape: Any = BackwardTape() if implementation == "fused" else {}
    context, _ = attend(**inputs, **options, tape=tape, implementation=implementation)
    recompute(tape)
    backward = {name: x for name, x in options.items() if name in ("scale", "softcap")}
    grads = attend_vjp(tape, dy, **backward, kv_heads=inputs["k"].shape[2])
    names = ("context", "dq", "dk", "dv", "dbias", "dsinks")
    found: dict[str, Any] = dict(zip(names, (context, *grads, tape.get("dsinks")), strict=True))
    return {name: x for name, x in found.items() if x is not None}


def held(inputs: Arrays, options: dict[str, Any], dtype: str = "float64", framework: str = "") -> dict[str, ErrArray]:
    """What the textbook gives, each number with the bound for a computation in a type, by a framework's fast path."""
    arrays: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    dy = ErrArray(cotangent((*inputs["q"].shape[:-1], V)), 0.0)
    with precision(fast_precision_of(framework, dtype)), np.errstate(invalid="ignore"):
        return numpy_results(arrays, dy, options, "textbook")


def fused(tree: Tree, inputs: Arrays, options: dict[str, Any]) -> Arrays:
    """What a tree's fast path gives, forward and backward."""
    dy = cotangent((*inputs["q"].shape[:-1], V)).astype(inputs["q"].dtype)
    if tree.name == "numpy":
        return numpy_results(inputs, dy, options, "fused")
    arrays = tree.arrays(inputs)
    leaves = {name: x for name, x in arrays.items() if inputs[name].dtype.kind == "f"}
    rest = {name: x for name, x in arrays.items() if name not in leaves}
    if tree.name == "torch":
        leaves = {name: x.requires_grad_() for name, x in leaves.items()}
        context, _ = tree.package.attend(**leaves, **rest, **options, implementation="fused")
        return {"context": tree.numpy(context)} | torch_gradients(context, **leaves)

    def call(leaves: Any) -> Any:
        return tree.package.attend(**leaves, **rest, **options, implementation="fused")[0]

    @jax.jit
    def both(leaves: Any, dy: Any) -> Any:
        context, pull = jax.vjp(call, leaves)
        return context, pull(dy)[0]

    context, grads = both(leaves, tree.array(dy))
    return {"context": tree.numpy(context)} | {f"d{name}": tree.numpy(g) for name, g in grads.items()}


# By name: sizes of blocks, and whether the weights are powers of 2.
BLOCKS = {
    "blocks": ({"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "PATTERN_KEYS": 2, "FEW_QUERIES": 0}, True),
    "powers of e": (
        {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "PATTERN_KEYS": 2, "FEW_QUERIES": 0},
        False,
    ),
    "blocks of several heads": (
        {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 50, "EDGE_QUERIES": 2, "PATTERN_KEYS": 2, "FEW_QUERIES": 0, "MIN_BLOCKS": 1},
        True,
    ),
    "whole": ({}, True),
}


@contextmanager
def small_blocks(tree: Tree, blocks: str = "blocks") -> Iterator[None]:
    """Blocks that these sizes fill several times, the last of them in part."""
    with pytest.MonkeyPatch.context() as patch:
        if tree.name == "numpy":
            values, fast = BLOCKS[blocks]
            for name, value in values.items():
                patch.setattr(numpy_kernels, name, value)
            patch.setattr(numpy_kernels, "exp2_is_fast", lambda dtype: fast)
        yield


def judged(got: dict[str, Any], want: dict[str, ErrArray]) -> None:
    assert set(got) == set(want)
    worst = {name: ratio(x, want[name]) for name, x in got.items()}
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_numpys_path_gives_what_the_textbook_gives(blocks: str, size: str, case: str) -> None:
    tree = TREES["numpy"]
    inputs, options = given(case, size)
    want = held(inputs, options)
    with small_blocks(tree, blocks):
        judged(fused(tree, inputs, options), want)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("blocks", ["blocks", "whole"])
def test_what_nobody_sees_leaks_into_no_gradient(blocks: str, tree: Tree) -> None:
    inputs, options = given("all")
    want, spoilt = held(inputs, options), {name: x.copy() for name, x in inputs.items()}
    spoilt["q"][0, 2], spoilt["k"][1, 4], spoilt["v"][1, 4] = np.nan, np.nan, np.inf
    with small_blocks(tree, blocks):
        judged(fused(tree, spoilt, options), want)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("case", ["bias", "all"])
@pytest.mark.parametrize("held_back", [np.nan, np.inf])
def test_what_a_mask_hides_of_a_bias_may_be_anything(held_back: float, case: str, tree: Tree) -> None:
    """A bias that is computed has NaN where padding is divided by padding."""
    inputs, options = given(case)
    near = given("all")[0]["mask"][..., : inputs["bias"].shape[-1]]
    inputs["mask"], inputs["bias"] = near, np.where(near, inputs["bias"], 0.0)
    spoilt = inputs | {"bias": np.where(near, inputs["bias"], held_back)}
    for blocks in ("blocks", "whole"):
        with small_blocks(tree, blocks):
            judged(fused(tree, spoilt, options), held(inputs, options))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("by", ["mask", "window"])
def test_a_hidden_score_may_be_inf_minus_inf(by: str, softcap: float | None, tree: Tree) -> None:
    """In a key that other queries see: a product of finite numbers that overflows, and a bias; under a cap two such
    products, so that its slope is NaN.
    """
    inputs, options = given("full")[0], {"softcap": softcap} | ({"window": (None, 0)} if by == "window" else {})
    near = np.tri(11, 13, 2, dtype=bool)
    inputs["q"][:, 2], inputs["q"][:, 3:], inputs["k"][:, 5] = 1e200, 0.0, -1e200
    inputs["bias"] = np.where(near, 0.0, np.inf)
    if softcap is not None:
        inputs["k"][:, 5, :, 0] = 1e200
    if by == "mask":
        inputs["mask"] = near
    for blocks in ("blocks", "whole"):
        small = kernels.SMALL[tree.name][0] if tree.name != "numpy" and blocks == "blocks" else {}
        with small_blocks(tree, blocks), kernels.blocks(tree.package.__name__, small):
            found = fused(tree, inputs, options)
        assert all(np.isfinite(x).all() for x in found.values())


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
def test_scores_of_nothing_but_minus_infinity_are_no_empty_row(
    options: dict[str, Any], sinks: bool, tree: Tree
) -> None:
    """They have overflowed, and say so by NaN; beside a sink they weigh nothing."""
    inputs = {name: x[..., :V] for name, x in given("full")[0].items()}
    inputs["q"][:, 2], inputs["k"] = 1e200, -1e200 - np.abs(inputs["k"])
    inputs |= {"sinks": np.zeros(H)} if sinks else {}
    for blocks in ("blocks", "whole"):
        with small_blocks(tree, blocks):
            found = tree.numpy(tree.package.attend(**tree.arrays(inputs), **options, implementation="fused")[0])
        assert np.isfinite(np.delete(found, 2, 1)).all()
        # PyTorch's own kernel can't tell such a query from one that sees no key.
        zero = sinks or (tree.name == "torch" and not options)
        assert (found[:, 2] == 0).all() if zero else np.isnan(found[:, 2]).all()


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize(("b", "t", "s"), [(0, 11, 13), (2, 0, 13), (2, 0, 600), (2, 11, 0), (2, 0, 0)])
@pytest.mark.parametrize("case", ["full", "causal", "sinks"])
def test_of_some_axis_there_may_be_none(case: str, b: int, t: int, s: int, tree: Tree) -> None:
    inputs, options = given(case)
    sizes = {"q": t, "k": s, "v": s}
    inputs = {name: np.resize(x, (b, sizes[name], *x.shape[2:])) if name in sizes else x for name, x in inputs.items()}
    found = fused(tree, inputs, options)
    assert found["context"].shape == (b, t, H, V)
    assert all(found[f"d{name}"].shape == x.shape for name, x in inputs.items())
    assert not any(x.any() for x in found.values())


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("named", ["mask", "bias"])
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (2, 1)}], ids=str)
def test_an_axis_of_one_serves_all_at_every_edge(options: dict[str, Any], named: str, name: str) -> None:
    """Whichever queries see no key and whichever keys nobody sees by their positions: as the array written out does."""
    tree, shared_by_others = TREES[name], np.random.default_rng(len(named))
    for (t, s), *shared in product(((3, 7), (7, 3)), (False, True), (False, True)):
        full, narrow = (2, 4, t, s), [n > 1 for n in shared_by_others.integers(1, 3, 2)] + [not x for x in shared]
        shape = tuple(n if own else 1 for n, own in zip(full, narrow, strict=True))
        drawn = np.random.default_rng([t, s, *shape])
        x = drawn.random(shape) < 0.8 if named == "mask" else drawn.normal(size=shape)
        inputs = {n: drawn.normal(size=(2, m, h, V)) for n, m, h in (("q", t, 4), ("k", s, 2), ("v", s, 2))}
        want: dict[str, Any] = held(inputs | {named: np.broadcast_to(x, full)}, options, framework=name)
        want |= {"dbias": sum_to(want["dbias"], shape)} if named == "bias" else {}
        for setting in ({}, kernels.SMALL[name][0]):
            with kernels.blocks(tree.package.__name__, setting):
                judged(fused(tree, inputs | {named: x}, options), want)


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (3, 6)}], ids=str)
def test_numpy_makes_the_same_scores_again(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, or a weight of 1 would be more than 1; blocks have other heads in the backward pass, and one key."""
    for name, n in {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "MIN_BLOCKS": 1}.items():
        monkeypatch.setattr(numpy_kernels, name, n)
    made: list[dict[tuple[int, ...], float]] = []
    heads: list[set[int]] = []
    real = numpy_kernels.scores_

    def scores(args: Any, block: Any, keys: Any, q: np.ndarray, out: np.ndarray) -> Any:
        found = real(args, block, keys, q, out)
        heads[-1].add(out.shape[1])
        for (b, h, t, s), x in np.ndenumerate(out):
            at = block.batch.start + b, block.heads.start + h, block.queries.start + t, keys.start + s
            made[-1][at] = x
        return found

    monkeypatch.setattr(numpy_kernels, "scores_", scores)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, n, 4, 5)).astype(np.float32) for n in (13, 17, 17))
    tape: Any = BackwardTape()
    for call in (lambda: attend(q, k, v, tape=tape, **options), lambda: attend_vjp(tape, np.ones_like(q), kv_heads=4)):
        made.append({})
        heads.append(set())
        call()
    assert made[0] == made[1]
    assert heads[0] != heads[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_hides_whatever_stands_there(dtype: type) -> None:
    """NaN and infinities too, by a mask that serves several heads; what is seen stays."""
    rng = np.random.default_rng(0)
    hidden = rng.random((1, 7, 9)) < 0.5
    x = rng.normal(size=(3, 7, 9)).astype(dtype)
    x[rng.random(x.shape) < 0.3] = np.nan
    x[0, :, ::2], x[1, ::3] = np.inf, -np.inf
    for select, value, seen in (
        (numpy_kernels.zero_hidden_, 0.0, x),
        (numpy_kernels.hidden_to_neg_inf_, -np.inf, np.where(np.isnan(x), np.inf, x)),
    ):
        found = x.copy()
        select(found, hidden[:, ::-1])
        np.testing.assert_array_equal(found, np.where(hidden[:, ::-1], dtype(value), seen))
        assert not np.signbit(found[np.broadcast_to(hidden[:, ::-1], x.shape)]).any() or value < 0


@pytest.mark.parametrize("blocks", BLOCKS)
def test_numpys_gradient_may_overflow_where_nobody_looks(blocks: str) -> None:
    """A huge gradient of the first query, huge values of a later key: their product is inf, and hidden."""
    inputs, options = given("causal")
    dy = cotangent((*inputs["q"].shape[:-1], V))
    inputs["v"][:, 1], dy[:, 0], dy[:, 1:] = 1e200, 1e200, 0.0
    with small_blocks(TREES["numpy"], blocks), np.errstate(over="ignore", invalid="ignore"):
        found = numpy_results(inputs, dy, options, "fused")
    assert all(np.isfinite(x).all() for x in found.values())
