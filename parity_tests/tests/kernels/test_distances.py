"""A bias by diagonal on the fast paths: one number for each diagonal, in blocks so small that edges fall everywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np import contract
from attn_np.kernels import flash
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.kernels.test_kernels import BLOCKS
from parity_tests.tests.mutation.checks_distances import CASES, by_numpy, drawn, expected, picked
from parity_tests.tests.witness import cotangent, ratio

blocks: Any = import_module("attn_torch.kernels.blocks")
# Beyond `parity_tests.judge.kernels.SMALL`: PyTorch's own kernel in blocks, too.
SMALL = {tree: settings[0] for tree, settings in kernels.SMALL.items()}
SMALL["torch"] = SMALL["torch"] | {"sdpa.ROWS_PER_CALL": 4}
# Blocks of two strips.
SMALL["jax"] = SMALL["jax"] | {"STRIP_ROWS": 2, "MAX_ROWS": 24, "WINDOW_BLOCK_QUERIES": 4}


def found(tree: Tree, case: str) -> Arrays:
    """What a tree's fast path gives, forward and backward."""
    arrays, given, options = drawn(case)
    low, dy = 1 - arrays["k"].shape[1], cotangent(arrays["q"].shape)
    attend = import_module(f"{tree.package.__name__}.attention.attend").attend
    options = options | {"implementation": "fused"}
    if tree.name == "numpy":
        return by_numpy("attn_np", case)
    floats = {name: x for name, x in (arrays | given).items() if x.dtype == float}
    rest = tree.arrays({name: x for name, x in arrays.items() if name not in floats})

    def call_of(floats: dict[str, Any]) -> Any:
        others = {name: x for name, x in floats.items() if name != "distances"}
        bias = lambda relative_position: picked(floats["distances"], relative_position - low)  # noqa: E731
        return attend(**others, **rest, **options, relative_bias_fn=bias)[0]

    if tree.name == "torch":
        with torch.no_grad():
            alone = call_of(tree.arrays(floats))
        leaves = {name: x.requires_grad_() for name, x in tree.arrays(floats).items()}
        context = call_of(leaves)
        grads = dict(zip(leaves, torch.autograd.grad(context, list(leaves.values()), tree.array(dy)), strict=True))
    else:

        @jax.jit
        def both(floats: Any) -> Any:
            context, pull = jax.vjp(call_of, floats)
            return context, pull(dy)[0]

        context, grads = both(tree.arrays(floats))
        alone = context
    results = {"context": context, "context alone": alone} | {f"d{name}": x for name, x in grads.items()}
    return {name: tree.numpy(x) for name, x in results.items()}


@contextmanager
def in_small_blocks(tree: Tree, fast: bool = True) -> Iterator[None]:
    """A tree's kernels in small blocks; NumPy's with weights that are powers of 2 or of e."""
    setting = SMALL[tree.name] | ({"exp2_is_fast": lambda dtype: fast} if tree.name == "numpy" else {})
    with kernels.blocks(tree.package.__name__, setting):
        yield


def ratios(tree: Tree, case: str) -> dict[str, float]:
    want = expected(tree.name, case)
    got = found(tree, case)
    assert {name.removesuffix(" alone") for name in got} == set(want)
    return {name: ratio(x, want[name.removesuffix(" alone")]) for name, x in got.items()}


# JAX compiles each call.
COMPILED = ("one bias for all heads", "mask and bias by query", "sinks and cap")
ASKED = [(name, case) for name in TREES for case in CASES if name != "jax" or case in COMPILED]


@pytest.mark.parametrize(("name", "case"), ASKED)
def test_a_bias_by_distance_is_that_bias_by_pairs(name: str, case: str) -> None:
    tree = TREES[name]
    with in_small_blocks(tree):
        worst = ratios(tree, case)
    assert max(worst.values()) <= 1, worst
    if tree.name == "numpy":
        for setting in ({}, BLOCKS["blocks of several heads"][0] | {"exp2_is_fast": lambda dtype: False}):
            with kernels.blocks("attn_np", setting):
                worst = ratios(tree, case)
            assert max(worst.values()) <= 1, (worst, setting)


def one_key_late(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    if tree.name == "numpy":
        real = flash.QueryBlock.slice_diagonals
        rolled = lambda block, x, keys, t: np.roll(real(block, x, keys, t), 1, -1)  # noqa: E731
        patch.setattr(flash.QueryBlock, "slice_diagonals", rolled)
    elif tree.name == "torch":
        at = blocks.BlockedCall.in_skewed_bias

        def late(call: Any, block: Any) -> Any:
            part = at(call, block)
            return part._replace(keys=slice(max(0, part.keys.start - 1), part.keys.stop - (part.keys.start > 0)))

        patch.setattr(blocks.BlockedCall, "in_skewed_bias", late)
    else:
        module = import_module("attn_jax.kernels.flash")
        at = module._strip_starts
        patch.setattr(module, "_strip_starts", lambda *given: [(n, column - 1) for n, column in at(*given)])


def bias_of_the_first_queries(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    module = import_module("attn_jax.kernels.flash")
    real, rows = module.slice_of, SMALL["jax"]["STRIP_ROWS"]
    first = lambda x, axis, at, size: real(x, axis, 0 if (axis, size) == (3, rows) else at, size)  # noqa: E731
    patch.setattr(module, "slice_of", first)


def far_blocks_skipped(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    patch.setattr(flash, "score_range", lambda *given: (-np.inf, -1e9))


def far_keys_alone_stay_skipped(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = flash.sums_over_keys
    patch.setattr(flash, "sums_over_keys", lambda args, block, q, bounded: real(args, block, q, True))


def gradient_of_one_block(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = flash.add_to_diagonal_sums

    def first(sums: Any, dscores: Any, queries: Any, keys: Any, t: int) -> None:
        if queries.start == 0:
            real(sums, dscores, queries, keys, t)

    patch.setattr(flash, "add_to_diagonal_sums", first)


def last_keys_out_of_reach(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = blocks.BlockedCall.effective_windows_of
    shorter = lambda call, significant: [(left - 1, right) for left, right in real(call, significant)]  # noqa: E731
    patch.setattr(blocks.BlockedCall, "effective_windows_of", shorter)


def diagonals_read_late(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = blocks.diagonals_of
    patch.setattr(blocks, "diagonals_of", lambda skewed_bias: real(skewed_bias).roll(1, -1))


def small_weights_cut_off(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = blocks.threshold_
    patch.setattr(blocks, "threshold_", lambda probs, least, value: real(probs, 0.1, value))


PLANTED: list[tuple[str, Callable[[pytest.MonkeyPatch, Tree], None], str]] = [
    ("numpy", one_key_late, "all keys"),
    ("torch", one_key_late, "mask and bias"),
    ("torch", last_keys_out_of_reach, "diagonals that hide"),
    ("torch", diagonals_read_late, "all keys"),
    ("torch", small_weights_cut_off, "diagonals that hide"),
    ("jax", one_key_late, "all keys"),
    ("jax", bias_of_the_first_queries, "mask and bias by query"),
    ("numpy", far_blocks_skipped, "all keys"),
    ("numpy", far_keys_alone_stay_skipped, "steep, near keys hidden"),
    ("numpy", gradient_of_one_block, "all keys"),
]


@pytest.mark.parametrize(("name", "plant", "case"), PLANTED)
def test_a_planted_bug_is_seen(name: str, plant: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, TREES[name])
    jax.clear_caches()  # of what was compiled without the bug, and then with it
    with in_small_blocks(TREES[name]), np.errstate(all="ignore"):
        worst = ratios(TREES[name], case)
    jax.clear_caches()
    assert not max(worst.values()) <= 1


@pytest.mark.parametrize("planted", [False, True])
def test_keys_that_no_query_sees_may_hold_anything(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In JAX, where the bias is -inf from the third key before a query's own position on."""
    tree, module = TREES["jax"], import_module("attn_jax.kernels.flash")
    if planted:
        monkeypatch.setattr(module, "_seen_by_diagonals", lambda plan, diagonal_bias, g: True)
    (t, s), rng = (11, 23), np.random.default_rng(0)
    q, k, v = (tree.array(rng.standard_normal((1, n, 2, 3))) for n in (t, s, s))
    garbage = (np.arange(s) < s - t - 2)[None, :, None, None]
    options = {
        "relative_bias_fn": lambda relative_position: jax.numpy.where(relative_position < -2, -np.inf, 0.0)[:, None]
    }
    attend = import_module("attn_jax.attention.attend").attend
    call = jax.jit(lambda k, v: attend(q, k, v, implementation="fused", **options)[0])
    jax.clear_caches()  # of what was compiled without the bug, and then with it
    with in_small_blocks(tree):
        context = call(*(jax.numpy.where(garbage, np.nan, x) for x in (k, v)))
    jax.clear_caches()
    assert np.isfinite(context).all() != planted


def test_what_a_bias_hides_may_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """In JAX: a key that the first query alone sees overflows with the last query, and with the cotangent before it."""
    tree, (t, s) = TREES["jax"], (11, 13)
    q, k, v, dy = (np.random.default_rng(0).standard_normal((1, n, 2, 3)) for n in (t, s, s, t))
    k[:, 0] = v[:, 0] = q[:, -1] = dy[:, -2] = 1e200
    q[:, 0] = -1.0
    bias = lambda relative_position: jax.numpy.where(relative_position < -2, -np.inf, 0.0)[:, None]  # noqa: E731
    attend = import_module("attn_jax.attention.attend").attend
    call = lambda *given: attend(*given, implementation="fused", relative_bias_fn=bias)[0]  # noqa: E731
    with in_small_blocks(tree):
        context, pull = jax.vjp(call, *(tree.array(x) for x in (q, k, v)))
        results = [context, *pull(tree.array(dy))]
    assert all(np.isfinite(tree.numpy(x)).all() for x in results)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("variant", ["alibi", "t5_bias"])
def test_no_sequences_and_no_positions(name: str, variant: str) -> None:
    """There is no diagonal then."""
    tree: Any = TREES[name]
    layer = tree.layer(variant, next(iter(contract.examples(variant))), "float64")
    for shape in ((0, 3), (2, 0), (0, 0)):
        x = np.zeros((*shape, layer.config.d_model))
        if name == "numpy":
            y, pull = tree.package.value_and_vjp(layer, x)
            assert pull(y).inputs["query"].shape == x.shape
        assert tuple(layer(tree.array(x)).shape) == (*shape, layer.config.output_dim or layer.config.d_model)
