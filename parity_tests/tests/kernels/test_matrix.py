"""Every pattern with every term and every weighing that an engine accepts, forward and backward, before the judge: in
blocks so small that edges fall everywhere.
"""

from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np import contract, patterns
from attn_np.attention.masks import visible_pairs
from attn_np.contract._intervals import TruthBounds
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree, random_inputs
from parity_tests.tests.kernels.test_distances import in_small_blocks
from parity_tests.tests.kernels.test_rows import in_small_blocks as in_blocks_of_rows
from parity_tests.tests.kernels.test_rows import layer_ratios
from parity_tests.tests.mutation.checks_terms import (
    CASES,
    LIMITS,
    PATTERNS,
    WIDTH,
    Case,
    by_numpy,
    by_pairs,
    drawn,
    expected,
    term_of,
)
from parity_tests.tests.witness import cotangent, ratio


def found(tree: Tree, case: Case) -> Arrays:
    """What a tree's fast path gives, forward and backward."""
    if tree.name == "numpy":
        return by_numpy("attn_np", case)
    arrays, pattern, _, options = drawn(case)
    options = options | {"implementation": "fused"}
    own = pattern and pattern.map(lambda axes, x: tree.array(x))
    dy = cotangent(arrays["q"].shape)

    def call_of(arrays: Any) -> Any:
        named = {name: x for name, x in arrays.items() if name != case.term}
        term = term_of(tree.package.terms, case, arrays.get(case.term))
        return tree.package.attend(**named, **options, pattern=own, terms=term)[0]

    if tree.name == "torch":
        with torch.no_grad():
            alone = call_of(tree.arrays(arrays))
        leaves = {name: x.requires_grad_() for name, x in tree.arrays(arrays).items()}
        context = call_of(leaves)
        grads = dict(zip(leaves, torch.autograd.grad(context, list(leaves.values()), tree.array(dy)), strict=True))
    else:

        @jax.jit
        def both(arrays: Any) -> Any:
            context, pull = jax.vjp(call_of, arrays)
            return context, pull(dy)[0]

        context, grads = both(tree.arrays(arrays))
        alone = context
    results = {"context": context, "context alone": alone} | {f"d{name}": x for name, x in grads.items()}
    return {name: tree.numpy(x) for name, x in results.items()}


def worst(tree: Tree, case: Case) -> float:
    """The largest error/bound of a case, in small blocks."""
    want = expected(case, tree.name)
    with in_small_blocks(tree, fast=CASES.index(case) % 2 == 0):
        got = found(tree, case)
    assert {name.removesuffix(" alone") for name in got} == set(want), (sorted(got), sorted(want))
    return max(ratio(x, want[name.removesuffix(" alone")]) for name, x in got.items())


def test_the_matrix_is_whole() -> None:
    """Each kind of pattern that the judge draws is in it, and what is hidden differs from pattern to pattern."""
    assert len(CASES) == (3 + kernels.PATTERN_KINDS) * 3 * 3
    shown = {case.pattern: drawn(case)[2] for case in CASES}
    assert sum(pairs.all() for pairs in shown.values()) == 1
    for case in CASES:
        _, pattern, pairs, _ = drawn(case)
        if pattern is not None:
            at = (np.arange(pairs.shape[2]) + pairs.shape[3] - pairs.shape[2])[None], np.arange(pairs.shape[3])[None]
            assert np.array_equal(np.broadcast_to(visible_pairs(pattern, *at), pairs.shape), pairs), case


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_with_each_term_and_weighing(name: str, pattern: str) -> None:
    for case in CASES:
        if case.pattern == pattern:
            assert worst(TREES[name], case) <= 1, str(case)


@pytest.mark.parametrize(("name", "setting"), [("numpy", {}), ("torch", {"SMALL_MAX_SCORES": 0})])
@pytest.mark.parametrize("first", [0, 1])
def test_what_one_sequence_must_see_says_nothing_of_the_next(name: str, setting: dict[str, int], first: int) -> None:
    """Two in one block: one of a single document, and one of two."""
    rng, tree, t = np.random.default_rng(first), TREES[name], 11
    arrays = {n: rng.normal(size=(2, t, heads, WIDTH)) for n, heads in (("q", 4), ("k", 2), ("v", 2))}
    documents = np.stack([np.zeros(t, int), np.arange(t) // 6])[[first, 1 - first]]
    places = tree.array(documents)
    options: dict[str, Any] = {"pattern": patterns.Documents(places, places), "implementation": "fused"}
    with kernels.blocks(tree.package.__name__, setting):
        context = tree.numpy(tree.package.attend(**tree.arrays(arrays), **options)[0])
    pairs = np.broadcast_to((documents[:, :, None] == documents[:, None])[:, None], (2, 4, t, t))
    assert ratio(context, by_pairs(name, arrays, pairs, np.zeros((1, 1, t, t), int), None)["context"]) <= 1


# Weights that are no softmax: their engine takes rows of queries, which see the keys of a band. ----------------------

ROWS = tuple(product(("sigmoid_attention", "sparsemax", "entmax15", "hard"), LIMITS, (False, True)))


def rows_ratio(tree: str, variant: str, limits: str, with_bias: bool) -> float:
    """The largest error/bound of a layer with these weights, its mask and, where asked, a bias."""
    fields: dict[str, Any] = {"d_model": 5, "num_heads": 2, "head_dim": 3, **LIMITS[limits]}
    config = contract.config(variant, **fields, softcap=1.5 if with_bias else None)
    inputs = random_inputs(config, "full", t=11, s=11)
    used = {name: x for name, x in inputs.items() if name != "keep" and (name != "bias" or with_bias)}
    return max(layer_ratios(tree, config, used).values())


@pytest.mark.parametrize("tree", ["numpy", "torch"])
@pytest.mark.parametrize(("variant", "limits", "with_bias"), ROWS)
def test_each_weighing_by_rows(
    tree: str, variant: str, limits: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks_of_rows(monkeypatch, tree)
    assert rows_ratio(tree, variant, limits, with_bias) <= 1


@pytest.mark.parametrize(("variant", "limits", "with_bias"), ROWS)
def test_each_weighing_by_rows_in_jax(
    variant: str, limits: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks_of_rows(monkeypatch, "jax")
    assert rows_ratio("jax", variant, limits, with_bias) <= 1


# Planted bugs ---------------------------------------------------------------------------------------------------------


def kernel_of(tree: Tree) -> Any:
    return import_module(f"{tree.package.__name__}.kernels.{'blocks' if tree.name == 'torch' else 'flash'}")


def a_stretch_too_few(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    """The first block of keys that a pattern may show is skipped."""
    kernel = kernel_of(tree)
    if tree.name == "jax":
        key_loop = kernel._key_loop

        def shorter(plan: Any, *given: Any) -> Callable[[Any], Any]:
            loop = key_loop(plan, *given)
            return loop if plan.pattern is None else lambda i: (loop(i)[0], loop(i)[1] - 1, loop(i)[2])

        patch.setattr(kernel, "_key_loop", shorter)
        return
    table = kernel.block_table

    def skipping(*args: Any, **options: Any) -> TruthBounds:
        known = table(*args, **options)
        shown = known.possible.cumsum(-1) > 1
        return TruthBounds(possible=known.possible & shown, certain=known.certain & shown)

    patch.setattr(kernel, "block_table", skipping)


def an_edge_not_masked(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    """A block that a pattern hides in part is taken for one that it shows whole."""
    kernel = kernel_of(tree)
    if tree.name == "numpy":
        table = kernel.block_table

        def unmasked(*args: Any, **options: Any) -> TruthBounds:
            known = table(*args, **options)
            return TruthBounds(possible=known.possible, certain=known.possible)

        patch.setattr(kernel, "block_table", unmasked)
    else:
        pairs = kernel.visible_pairs
        patch.setattr(kernel, "visible_pairs", lambda *given: pairs(*given) | True)


def a_bucket_too_far(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    """The gradients of a table go to the rows of the next distance, in blocks behind the first."""
    kernel = kernel_of(tree)
    if tree.name == "numpy":
        real = kernel.add_to_diagonal_sums

        def late(sums: Any, dscores: Any, queries: Any, keys: Any, t: int) -> None:
            real(sums, np.roll(dscores, 1 if queries.start else 0, -1), queries, keys, t)

        patch.setattr(kernel, "add_to_diagonal_sums", late)
    elif tree.name == "torch":
        real = kernel.Block.add
        patch.setattr(
            kernel.Block, "add",
            lambda block, total, axes, x: real(block, total, axes, x.roll(1, -1) if axes == "bgrts" else x),
        )  # fmt: skip
    else:
        real = kernel.add_at
        patch.setattr(
            kernel, "add_at", lambda x, start, y: real(x, start, jax.numpy.roll(y, 1, -1) if len(start) == 5 else y)
        )


PLANTED: dict[Callable[[pytest.MonkeyPatch, Tree], None], Case] = {
    a_stretch_too_few: Case("chunks and neighbours", "table", "softmax"),
    an_edge_not_masked: Case("dilated", "slopes", "sinks"),
    a_bucket_too_far: Case("prefix or causal", "table", "softcap"),
}


NAMED = {str(case): case for case in CASES}


@pytest.mark.parametrize("row", NAMED)
def test_each_of_them_in_jax(row: str) -> None:
    """By default those of the planted bugs: JAX compiles each."""
    assert worst(TREES["jax"], NAMED[row]) <= 1


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_seen(name: str, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TREES[name]
    plant(monkeypatch, tree)
    jax.clear_caches()  # what was compiled before has no bug, and what is now must not stay
    with np.errstate(all="ignore"):
        found = worst(tree, PLANTED[plant])
    jax.clear_caches()
    assert not found <= 1
