"""Rules that frameworks answer differently, each pinned by name in the three trees.

Which keys a window counts, what infinities and overflow do, how dropout is drawn, what is repeatable, and which
derivatives there are beyond the first. What must be equal is compared to the bit; the rest by derived bounds. Random
draws are judged by exact tests of their distribution, at the level `ALPHA` for each number looked at.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import product
from math import log, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.func import functional_call

from attn_np import contract
from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, widened
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.bounds.tangents import Dual
from parity_tests.judge.candidates import extras, numpy_layer, run_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import (
    TREES,
    Arrays,
    Tree,
    config_of,
    first_difference,
    flat,
    random_inputs,
    same,
    without,
)
from parity_tests.tests.witness import bounded, cotangent, layer_of, weights_of

VARIANTS = contract.variants()
ALPHA = Fraction(1, 10**9)  # how often a right draw may be called wrong


def calls(tree: Tree, inputs: Arrays, **options: Any) -> Arrays:
    """Context, weights and gradients that `attend` of a tree gives, silent about overflow."""
    dy = upstream(inputs)
    with np.errstate(all="ignore"):
        if tree.name == "numpy":
            return by_hand(tree.package.__name__, inputs, dy.astype(np.result_type(dy, np.float32)), options)
        arrays = tree.arrays(inputs)
        leaves = {name: x for name, x in arrays.items() if inputs[name].dtype != bool}
        rest = {name: x for name, x in arrays.items() if name not in leaves}
        run = by_torch if tree.name == "torch" else by_jax
        got = run(tree.package.attend, leaves, rest | options, tree.array(dy))
        return {name: tree.numpy(x) for name, x in got.items()}


def by_hand(package: str, inputs: dict[str, Any], dy: Any, options: dict[str, Any]) -> dict[str, Any]:
    """With NumPy's own backward pass, from a package or a copy of it, on arrays or on error-carrying arrays."""
    module, tape = import_module(f"{package}.attention.attend"), {}
    context, weights = module.attend(**inputs, **options, tape=tape, return_weights=True)
    backward = {name: x for name, x in options.items() if name in signature(module.attend_vjp).parameters}
    grads = dict(zip(("dq", "dk", "dv", "dbias"), module.attend_vjp(tape, dy, **backward), strict=True))
    return {name: x for name, x in ({"context": context, "weights": weights} | grads).items() if x is not None}


def by_torch(attend: Callable[..., Any], leaves: dict[str, Any], rest: dict[str, Any], dy: Any) -> dict[str, Any]:
    leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    context, weights = attend(**leaves, **rest, return_weights=True)
    grads = torch.autograd.grad(context, list(leaves.values()), dy)
    return {"context": context, "weights": weights} | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def by_jax(attend: Callable[..., Any], leaves: dict[str, Any], rest: dict[str, Any], dy: Any) -> dict[str, Any]:
    arrays = {name: x for name, x in rest.items() if isinstance(x, jax.Array)}
    options = {name: x for name, x in rest.items() if name not in arrays}
    context, weights, grads = compiled(attend, **options)(leaves, arrays, dy)
    return {"context": context, "weights": weights} | {f"d{name}": grads[name] for name in leaves}


@cache
def compiled(attend: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def run(leaves: Any, arrays: Any, dy: Any) -> Any:
        (context, weights), pull = jax.vjp(
            lambda leaves: attend(**leaves, **arrays, **options, return_weights=True), leaves
        )
        return context, weights, pull((dy, jnp.zeros_like(weights)))[0]

    return jax.jit(run)


def upstream(inputs: Arrays) -> np.ndarray:
    """The gradient of the context."""
    return cotangent((*inputs["q"].shape[:-1], inputs["v"].shape[-1])).astype(inputs["q"].dtype)


def judged(got: Arrays, inputs: Arrays, dtype: str = "float64", **options: Any) -> None:
    """Every number within the bound that the reference derives for a computation in `dtype`."""
    wide = {n: ErrArray(widened(x), 0.0) if x.dtype != bool else x for n, x in inputs.items()}
    with precision(precision_of(dtype)), np.errstate(invalid="ignore"):
        want = by_hand("attn_np", wide, ErrArray(widened(upstream(inputs)), 0.0), options)
    assert set(got) == set(want)
    for name, x in got.items():
        assert compare(widened(x), want[name], dtype)["ratio"] <= 1, name


def some(t: int = 3, s: int = 4, seed: int = 0, dtype: Any = np.float64) -> Arrays:
    """Random queries, keys and values of one head."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (2, t, 3), "k": (2, s, 3), "v": (2, s, 5)}
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


# Who sees whom --------------------------------------------------------------------------------------------------------

# Causal, window, and for each query which keys it sees: query i of t stands at position i + s - t.
PATTERNS: dict[str, tuple[bool, Any, str]] = {
    "causal": (True, None, "x... xx.. xxx. xxxx"),
    "causal-few-queries": (True, None, "xxxx. xxxxx"),
    "causal-few-keys": (True, None, ".. .. .. x. xx"),
    "itself-and-two-before": (False, (2, 0), "x.... xx... xxx.. .xxx. ..xxx"),
    "two-before-few-queries": (False, (2, 0), ".xxx. ..xxx"),
    "two-before-few-keys": (False, (2, 0), ".. .. .. x. xx"),
    "itself-and-two-after": (False, (0, 2), "xxx.. .xxx. ..xxx ...xx ....x"),
    "two-after-few-keys": (False, (0, 2), ".. x. xx xx .x"),
    "itself-alone": (False, (0, 0), "...x. ....x"),
    "all-before-one-after": (False, (None, 1), ".. .. x. xx xx"),
    "one-before-all-after": (False, (1, None), "..xxx ...xx"),
    "causal-with-a-window": (True, (1, 3), "x... xx.. .xx. ..xx"),
}


def pattern(name: str) -> np.ndarray:
    return np.array([[place == "x" for place in row] for row in PATTERNS[name][2].split()])


def rows_seen(tree: Tree, name: str) -> None:
    causal, window, want = *PATTERNS[name][:2], pattern(name)
    got = calls(tree, some(*want.shape), causal=causal, window=window)
    assert same(got["weights"] != 0, np.broadcast_to(want, got["weights"].shape))
    empty = ~want.any(axis=1)
    assert not got["context"][:, empty].any()
    assert not got["dq"][:, empty].any()
    assert got["context"][:, ~empty].all()
    assert all(np.isfinite(x).all() for x in got.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_windows_count_keys_from_the_querys_own_position(tree: Tree, name: str) -> None:
    """`window=(2, 0)` sees three keys; a query above the first key sees nothing, and gets 0."""
    rows_seen(tree, name)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "window" in contract.get(v).Config.fields()])
def test_layers_pass_their_window_on(tree: Tree, variant: str) -> None:
    """Asked with small inputs: scores are then all but equal, and no key weighs nothing because it does not fit.

    Where equal scores may not share, so many batch rows are asked that each key in sight weighs something in one.
    """
    config = config_of(variant, next(iter(contract.examples(variant))))
    many = {"b": 64} if "indifferent_scores_share_evenly" in config.broken_relations() else {}
    for name in ("causal-few-queries", "two-before-few-keys", "itself-and-two-after"):
        causal, window, want = *PATTERNS[name][:2], pattern(name)
        if "key" in config.arguments():
            inputs = random_inputs(config, "full", t=want.shape[0], s=want.shape[1], **many)
        else:
            inputs = random_inputs(config, "plain", t=5, **many)
            want = pattern("causal-few-keys" if causal else name)[:, :0] if want.shape != (5, 5) else want
        if not want.size:
            continue
        layer = tree.build(without(config, causal=causal, window=window, dropout=0.0))
        given = {n: x / 2**10 for n, x in inputs.items() if n in ("query", "key", "value")}
        seen = tree(layer, given, return_weights=True)[1] != 0
        seen = np.any(seen, axis=0) if many else seen
        assert same(seen, np.broadcast_to(want, seen.shape)), name


# Masks of fewer dimensions: every axis has the same size, so that aligning them at the left would fit too.
RANKS = {4: "b h t s", 3: "h t s", 2: "t s", 1: "s", 0: ""}


def ranks(tree: Tree, rank: int) -> None:
    rng = np.random.default_rng(rank)
    inputs = {name: rng.normal(size=(4, 4, 4, 4)) for name in "qkv"}
    small: Arrays = {name: np.asarray(rng.random((4,) * rank) < 0.6) for name in ("mask", "keep")}
    small["bias"] = np.asarray(rng.normal(size=(4,) * rank))
    whole = {name: np.broadcast_to(x, (4, 4, 4, 4)).copy() for name, x in small.items()}
    with jax.disable_jit():  # a compiler may order the sums of another graph otherwise
        got, want = calls(tree, inputs | small), calls(tree, inputs | whole)
    assert got["dbias"].shape == small["bias"].shape
    judged(got, inputs | small)
    for name in ("context", "weights", "dq", "dk", "dv"):
        assert same(got[name], want[name]), name


@pytest.mark.parametrize("rank", RANKS)
def test_masks_of_fewer_axes_are_aligned_at_the_right(tree: Tree, rank: int) -> None:
    """Mask, bias and keep-mask; the bias's gradient has the bias's shape."""
    ranks(tree, rank)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 3, 3), (1, 4, 1, 3), (4, 4, 1, 3)])
@pytest.mark.parametrize("name", ["mask", "bias", "keep"])
def test_masks_shorter_than_the_keys_are_refused(tree: Tree, name: str, shape: tuple[int, ...]) -> None:
    """They are not filled up, neither with what may be seen nor with what may not."""
    arrays = {n: np.ones((4, 4, 4, 4)) for n in "qkv"}
    short = np.zeros(shape) if name == "bias" else np.ones(shape, bool)
    with pytest.raises(ValueError, match=f"expected {name} broadcastable to"):
        tree.package.attend(**tree.arrays(arrays | {name: short}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_mixed_dtypes_are_refused(tree: Tree, name: str, dtype: str) -> None:
    inputs = some()
    wrong = inputs | {name: inputs[name].astype(contract_dtype(dtype))}
    with pytest.raises(TypeError, match=r"^attend: expected "):
        tree.package.attend(**tree.arrays(wrong))


def contract_dtype(name: str) -> Any:
    return import_module("attn_np.ops").DTYPES[name]


def empty_rows(tree: Tree) -> None:
    rng = np.random.default_rng(1)
    inputs = some() | {"bias": rng.normal(size=(2, 3, 4)), "mask": np.ones((2, 3, 4), bool)}
    inputs["mask"][0] = inputs["mask"][1, 1] = False
    got = calls(tree, inputs)
    for name in ("context", "weights", "dq", "dk", "dv", "dbias"):
        assert not got[name][0].any(), name
        assert np.isfinite(got[name]).all(), name
    for name in ("context", "weights", "dq", "dbias"):
        assert not got[name][1, 1].any(), name
        assert got[name][1, 0].any(), name
        assert got[name][1, 2].any(), name
    assert got["dk"][1].all()
    assert got["dv"][1].all()


def test_gradients_of_empty_rows_are_zero(tree: Tree) -> None:
    """Each of dq, dk, dv and dbias, in a batch row that sees nothing at all and in a single query."""
    empty_rows(tree)


# Infinities and signed zeros ------------------------------------------------------------------------------------------


def biased(row: Any = 0.0) -> Arrays:
    """A call whose second query in the first batch row has this bias."""
    bias = np.random.default_rng(2).normal(size=(2, 3, 4))
    bias[0, 1] = row
    return some() | {"bias": bias}


def test_a_bias_of_minus_zero_changes_no_bit(tree: Tree) -> None:
    plain, minus, plus = some(), np.full((2, 3, 4), -0.0), np.zeros((2, 3, 4))
    want = calls(tree, plain)
    for bias in (minus, plus):
        got = calls(tree, plain | {"bias": bias})
        assert first_difference({n: got[n] for n in want}, want) is None


def minus_infinity(tree: Tree) -> None:
    got = calls(tree, biased([-np.inf, 1.0, -np.inf, 0.5]))
    assert same(got["weights"][0, 1] == 0, np.array([True, False, True, False]))
    mask = np.ones((2, 3, 4), bool)
    mask[0, 1, [0, 2]] = False
    want = calls(tree, biased([7.0, 1.0, 7.0, 0.5]) | {"mask": mask})
    assert first_difference(got, want) is None


def test_a_bias_of_minus_infinity_hides_as_a_mask_does(tree: Tree) -> None:
    """To the bit, gradients too."""
    minus_infinity(tree)


def only_minus_infinity(tree: Tree) -> None:
    got, mask = calls(tree, biased(-np.inf)), np.ones((2, 3, 4), bool)
    mask[0, 1] = False
    assert first_difference(got, calls(tree, biased(7.0) | {"mask": mask})) is None
    for name in ("context", "weights", "dq", "dbias"):
        assert not got[name][0, 1].any(), name


def test_a_row_of_minus_infinity_alone_is_an_empty_row(tree: Tree) -> None:
    """Weights, output and gradients 0, never NaN: an additive mask that hides everything is one that does."""
    only_minus_infinity(tree)


def plus_infinity(tree: Tree) -> None:
    got, want = calls(tree, biased([np.inf, 1.0, 0.0, 0.5])), calls(tree, biased())
    hit = np.zeros((2, 3), bool)
    hit[0, 1] = True
    for name in ("context", "weights", "dq", "dbias"):
        assert np.isnan(got[name][hit]).all(), name
        assert same(got[name][~hit], want[name][~hit]), name
    for name in ("dk", "dv"):
        assert np.isnan(got[name][0]).all(), name
        assert same(got[name][1], want[name][1]), name


def test_a_bias_of_plus_infinity_is_nan_in_its_row_alone(tree: Tree) -> None:
    """Not one winner, not 0: a row that has no answer says so, and no other row hears of it."""
    plus_infinity(tree)


BIASED = [v for v in VARIANTS if contract.get(v).EXAMPLES and "bias" in next(
    iter(contract.examples(v).values())).arguments()]  # fmt: skip


@pytest.mark.parametrize("variant", BIASED)
def test_infinite_bias_in_every_variant(tree: Tree, variant: str) -> None:
    """-inf alone: an empty row; +inf and NaN: NaN, where weights are shared; the other rows are as they were, to the
    bit.
    """
    config = without(config_of(variant, next(iter(contract.examples(variant)))), dropout=0.0)
    layer, inputs = tree.build(config), random_inputs(config, "plain")
    query = next(iter(inputs.values()))
    s = inputs["key"].shape[1] if "key" in inputs else query.shape[1]
    heads = (config.sizes()["h"],) if "h" in config.arguments()["bias"].axes else ()
    clean = np.zeros((query.shape[0], *heads, query.shape[1], s))
    want, weights = tree(layer, inputs | {"bias": clean}, return_weights=True)
    for value in (-np.inf, np.inf, np.nan):
        bias = clean.copy()
        bias[0, ..., 1, :] = value
        with np.errstate(invalid="ignore"):
            y, got = tree(layer, inputs | {"bias": bias}, return_weights=True)
        row, others = got[0, ..., 1, :], np.arange(query.shape[1]) != 1
        shared = "weights_add_up_to_one" not in config.broken_relations()
        if shared or value < 0:
            assert not row.any() if value < 0 else np.isnan(row).all()
            assert np.isnan(y[0, 1]).all() == (not value < 0)
        for a, b in ((y[0, others], want[0, others]), (y[1], want[1])):
            assert same(a, b)
        assert same(got[0][..., others, :], weights[0][..., others, :])


def huge() -> Arrays:
    """Float16 queries and keys whose scores no float16 can hold."""
    inputs = some(5, 7, dtype=np.float16)
    inputs["q"] *= np.float16(500)
    inputs["k"] *= np.float16(500)
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    assert np.abs(np.einsum("btk,bsk->bts", wide["q"], wide["k"]) / sqrt(3)).max() > np.finfo(np.float16).max
    return inputs


def huge_scores(tree: Tree) -> None:
    inputs = huge()
    got = calls(tree, inputs)
    assert all(np.isfinite(widened(x)).all() for x in got.values())
    judged(got, inputs, "float16")


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # PyTorch's and JAX's gradients come in float16
def test_float16_scores_beyond_its_range(tree: Tree) -> None:
    """Scores are computed in float32: finite and right, gradients too."""
    huge_scores(tree)


def overflowing() -> Arrays:
    """Float32 queries and keys whose products overflow.

    All terms of a product have one sign, so that no order of summation can make another class of it. Of the queries in
    the first batch row: scores +inf; both infinities; -inf and finite; all -inf; all finite; -inf, the rest hidden.
    """
    signs = {"q": [1, 1, -1, -1, 0, -1], "k": [1, 1, 1, 0]}
    found = {name: np.ones((2, len(x), 3), np.float32) for name, x in signs.items()}
    for name, x in signs.items():
        found[name][0] *= np.float32(1e20) * np.array(x, np.float32)[:, None]
    found["k"][0, 1:3] *= np.array([-1, 1], np.float32)[:, None]
    found["v"] = np.random.default_rng(3).normal(size=(2, 4, 5)).astype(np.float32)
    mask = np.ones((2, 6, 4), bool)
    mask[0, :, :] = [
        [True, False, True, True],
        [True, True, False, True],
        [True, False, True, True],
        [True, False, True, False],
        [True, True, True, True],
        [True, False, False, False],
    ]
    return found | {"mask": mask}


def overflow(tree: Tree) -> None:
    got = calls(tree, overflowing())
    lost = np.array([True, True, False, True, False, True])
    for name in ("weights", "context"):
        assert np.isnan(got[name][0, lost]).any(-1).all(), f"{name}: no silent number"
        assert np.isfinite(got[name][0, ~lost]).all(), name
        assert np.isfinite(got[name][1]).all(), name
    assert same(got["weights"][0, 2], np.array([0, 0, 0, 1], np.float32))
    assert same(got["weights"][0, 4], np.full(4, 0.25, np.float32))


def test_float32_scores_that_overflow_are_nan(tree: Tree) -> None:
    """+inf, both infinities, or nothing but -inf: NaN, never zeros. -inf beside finite scores weighs 0."""
    overflow(tree)


def test_the_trees_agree_what_an_overflow_spoils() -> None:
    """The same numbers are NaN, infinite or finite in all of them, gradients included."""
    found = [calls(tree, overflowing()) for tree in TREES.values()]
    for name in found[0]:
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert all(same(kind(found[0][name]), kind(other[name])) for other in found[1:]), name


# Scores alike, scale --------------------------------------------------------------------------------------------------


def uniform(tree: Tree, dtype: str) -> None:
    kind = contract_dtype(dtype)
    for n, value in product((1, 2, 4, 8), (0.0, 1.0, -90.0)):
        inputs = {name: np.full((1, x, 2), value).astype(kind) for name, x in (("q", 2), ("k", 8))}
        inputs["v"] = np.arange(8).astype(kind).reshape(1, -1, 1)
        whole = {"mask": np.arange(8)[None, None, :].repeat(2, 1) < n} if n < 8 else {}
        with jax.disable_jit():  # XLA fuses exp into the sum and rounds it there otherwise: 1/n within a rounding only
            got = calls(tree, inputs | whole)
        assert same(got["weights"], np.where(np.arange(8) < n, kind.type(1 / n), kind.type(0))[None, None].repeat(2, 1))
        assert same(got["context"], np.full((1, 2, 1), (n - 1) / 2).astype(kind)), (n, value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_equal_scores_share_exactly(tree: Tree, dtype: str) -> None:
    """Among a power of two of keys each weighs 1/n to the bit, and the output is their exact mean."""
    uniform(tree, dtype)


def scales(tree: Tree) -> None:
    inputs = some(s=8)
    none = calls(tree, inputs, scale=0.0)
    assert same(none["weights"], np.full((2, 3, 8), 0.125))
    assert not none["dq"].any()
    assert not none["dk"].any()
    judged(none, inputs, scale=0.0)
    negative = calls(tree, inputs, scale=-0.7)
    judged(negative, inputs, scale=-0.7)
    turned = calls(tree, inputs | {"q": -inputs["q"]}, scale=0.7)
    assert same(negative["weights"], turned["weights"])
    assert same(negative["dq"], -turned["dq"])
    assert same(negative["dk"], turned["dk"])


def test_a_scale_of_zero_and_a_negative_scale(tree: Tree) -> None:
    """0 is a scale like any other: all scores alike, no gradient for q and k. A minus is that of the queries."""
    scales(tree)


def scaled() -> list[str]:
    """Variants that return weights and whose scale is on all that their scores are made of."""
    found = {variant: next(iter(contract.examples(variant).values())) for variant in VARIANTS}
    uneven = "indifferent_scores_share_evenly"
    scaled = [v for v, c in found.items() if "scale" in c.fields() and uneven not in c.broken_relations()]
    # A bias of the layer's own is not scaled.
    scaled = [v for v in scaled if "w_bias" not in found[v].own_params()]
    # What is causal whatever its fields leaves the first query one key.
    scaled = [v for v in scaled if "causal" in found[v].fields() or not getattr(found[v], "causal", False)]
    return [v for v in scaled if "return_weights" in extras(v, found[v].class_name)]


@pytest.mark.parametrize("variant", scaled())
def test_layers_take_a_scale_of_zero(tree: Tree, variant: str) -> None:
    config = config_of(variant, next(iter(contract.examples(variant))))
    inputs = random_inputs(config, "plain", t=4, s=4)
    layer = tree.build(without(config, scale=0.0, dropout=0.0, causal=False, window=None))
    weights = tree(layer, inputs, return_weights=True)[-1]
    assert same(weights, np.full(weights.shape, 1 / weights.shape[-1]))


# Layout in memory -----------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "heads-first": lambda x: np.ascontiguousarray(x.swapaxes(1, -1)).swapaxes(1, -1),
    "sliced": lambda x: np.repeat(np.repeat(x, 2, axis=-1), 3, axis=1)[:, ::3, ..., ::2],
    "backward": lambda x: np.ascontiguousarray(x[::-1, ::-1, ..., ::-1])[::-1, ::-1, ..., ::-1],
    "expanded": lambda x: np.broadcast_to(x[:1], x.shape),
    "no-batch": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_strides(tree: Tree, layout: str) -> None:
    """`attend` and its gradients by what indices say; JAX copies, so there not a bit differs.

    Elsewhere a matrix product may sum another layout in another order, and the bound judges.
    """
    any_strides(tree, layout)


def any_strides(tree: Tree, layout: str) -> None:
    rng = np.random.default_rng(4)
    inputs: Arrays = {n: rng.normal(size=(2, s, 3, w)) for n, s, w in (("q", 5, 7), ("k", 11, 7), ("v", 11, 2))}
    inputs |= {"mask": rng.random((2, 3, 5, 11)) < 0.7, "bias": rng.normal(size=(2, 3, 5, 11))}
    strided = {name: LAYOUTS[layout](x) for name, x in inputs.items()}
    plain = {name: np.ascontiguousarray(x) for name, x in strided.items()}
    holder: Any = Strided(tree, layout) if tree.name == "torch" else tree
    got = calls(holder, strided)
    judged(got, plain)
    if tree.name == "jax":
        assert first_difference(got, calls(tree, plain)) is None


class Strided:
    """PyTorch's tree, handing on the strides of what it is given; torch has no negative ones, and copies those."""

    def __init__(self, tree: Tree, layout: str) -> None:
        self.name, self.package, self.array, self.numpy = tree.name, tree.package, tree.array, tree.numpy
        self.layout = layout

    def arrays(self, inputs: Arrays) -> dict[str, Any]:
        return {name: self.laid_out(x) for name, x in inputs.items()}

    def laid_out(self, x: np.ndarray) -> Any:
        if self.layout == "expanded":
            return self.array(x[:1]).expand(x.shape)
        return self.array(x) if self.layout == "backward" else torch.from_numpy(x)


# Dropout --------------------------------------------------------------------------------------------------------------

DROPPING = [v for v in VARIANTS if "dropout" in contract.get(v).Config.fields()]
RATE = Fraction(1, 4)


def ask_all(names: Iterable[str], *in_jax: str) -> list[Any]:
    """Every variant in NumPy and PyTorch; in JAX, which compiles each operation of a new shape, some."""
    pairs = [(tree, v) for v in names for tree in TREES.values() if tree.name != "jax" or v in in_jax]
    return [pytest.param(tree, v, id=f"{tree.name}-{v}") for tree, v in pairs]


def dropping(variant: str) -> Config:
    """The example that draws most masks, at the rate that is tested."""
    examples = contract.examples(variant).values()
    plain = [c for c in examples if getattr(c, "vocab_size", None) is None]
    return without(max(plain, key=lambda c: (c.sizes().get("h", 0), c.sizes().get("w", 0))), dropout=float(RATE))


def in_training(tree: Tree, config: Config, seed: int) -> Any:
    torch.manual_seed(seed)  # PyTorch's layers draw from its own generator, the others from one of theirs
    return tree.training(tree.build(config, seed=seed))


def drawn_masks(tree: Tree, layer: Any, inputs: Arrays) -> Arrays:
    """Every keep-mask that a call in training draws, by its name on the tape; not again where it is handed on."""
    _, tape = Tree.trace(tree, layer, inputs)
    masks = {name: x for name, x in tape.items() if name.endswith("keep") and x.size}
    return {name: x for name, x in masks.items() if not ("." in name and name.rpartition(".")[2] in masks)}


@cache
def fewest(n: int, p: Fraction) -> int:
    """The smallest k for which P(K <= k) of the binomial distribution is above ALPHA / 2, in exact integers."""
    hit, miss = p.numerator, p.denominator - p.numerator
    limit = p.denominator**n * ALPHA / 2
    k, term, total = 0, miss**n, miss**n
    while total <= limit:
        term = term * (n - k) * hit // ((k + 1) * miss)
        k, total = k + 1, total + term
    return k


def unlikely(counts: np.ndarray, n: int, p: Fraction) -> bool:
    """Whether any of some counts of n independent draws is out of the exact two-sided interval."""
    return bool(np.any(counts < fewest(n, p)) or np.any(n - counts < fewest(n, 1 - p)))


def binomial(keep: np.ndarray) -> None:
    """Kept counts: of the whole mask, and of every slice along every axis (batch row, head, query, key)."""
    share = 1 - RATE
    assert not unlikely(np.array(keep.sum()), keep.size, share), "the whole mask"
    for i in range(keep.ndim):
        slices = np.moveaxis(keep, i, 0).reshape(keep.shape[i], -1)
        assert not unlikely(slices.sum(axis=1), slices.shape[1], share), f"slices along axis {i}"


def apart(keep: np.ndarray) -> None:
    """How often two slices along an axis agree is binomial too: a mask shared over it agrees always."""
    agree = (1 - RATE) ** 2 + RATE**2
    for i in range(keep.ndim):
        slices = np.moveaxis(keep, i, 0).reshape(keep.shape[i], -1).astype(np.int64)
        both = slices @ slices.T + (1 - slices) @ (1 - slices).T
        pairs = both[np.triu_indices(len(slices), 1)]
        assert not unlikely(pairs, slices.shape[1], agree), f"pairs along axis {i}"


def neighbours(keep: np.ndarray) -> None:
    """No correlation of neighbours along the last two axes.

    sum (x_i - p)(x_{i+1} - p) / (p (1 - p) sqrt(n)) has mean 0, variance 1 and independent parts in pairs; the sum of
    squares of two of them is a chi-square of two degrees of freedom, beyond c with probability exp(-c / 2).
    """
    p = float(1 - RATE)
    x = (keep - p) / sqrt(p * (1 - p))
    lags = (x[..., 1:] * x[..., :-1], x[..., 1:, :] * x[..., :-1, :])
    assert sum(lag.sum() ** 2 / lag.size for lag in lags) <= -2 * log(ALPHA)


def drawn_right(tree: Tree, variant: str) -> None:
    config = dropping(variant)
    layer = in_training(tree, config, seed=1)
    masks = drawn_masks(tree, layer, random_inputs(config, "plain", b=16, t=16, s=12))
    assert masks
    for keep in masks.values():
        binomial(keep)
        apart(keep)
        neighbours(keep)


@pytest.mark.parametrize(("tree", "variant"), ask_all(DROPPING, "mha", "gru"))
def test_dropout_is_drawn_independently_at_its_rate(tree: Tree, variant: str) -> None:
    """Binomial in the whole and in every slice, no two slices alike, neighbours uncorrelated."""
    drawn_right(tree, variant)


def seeded(tree: Tree, variant: str) -> None:
    config = dropping(variant)
    inputs = random_inputs(config, "plain", t=5, s=7)
    first, again, other = (in_training(tree, config, seed=seed) for seed in (1, 1, 2))
    torch.manual_seed(1)
    one, two = drawn_masks(tree, first, inputs), drawn_masks(tree, first, inputs)
    torch.manual_seed(1)
    assert first_difference(drawn_masks(tree, again, inputs), one) is None, "the same seed draws the same mask"
    torch.manual_seed(2)
    third = drawn_masks(tree, other, inputs)
    for name, x in one.items():
        assert not same(two[name], x), f"{name}: the next call draws another mask"
        assert not same(third[name], x), f"{name}: another seed draws another mask"
    names = list(one)
    assert not any(same(one[a], one[b]) for a in names for b in names if a < b), "masks of one call differ"


@pytest.mark.parametrize(("tree", "variant"), ask_all(DROPPING, "mha", "additive"))
def test_seeds_draw_masks(tree: Tree, variant: str) -> None:
    seeded(tree, variant)


def no_rate(tree: Tree, variant: str) -> None:
    config = without(dropping(variant), dropout=0.0)
    inputs = random_inputs(config, "plain", t=5, s=7)
    got = Tree.__call__(tree, in_training(tree, config, seed=1), inputs)
    for x, want in zip(got, Tree.__call__(tree, tree.build(config, seed=1), inputs), strict=True):
        assert same(x, want)


@pytest.mark.parametrize(("tree", "variant"), ask_all(DROPPING, "mha"))
def test_a_rate_of_zero_is_evaluation(tree: Tree, variant: str) -> None:
    no_rate(tree, variant)


ROWS = 4096


def unbiased(tree: Tree, variant: str) -> None:
    config = dropping(variant)
    one = random_inputs(config, "plain", b=1, t=2, s=3)
    calm = Tree.trace(tree, tree.build(config, seed=1), one)[1]
    many = {name: np.repeat(x, ROWS, axis=0) for name, x in one.items()}
    context = Tree.trace(tree, in_training(tree, config, seed=1), many)[1]["context"]
    heads = "h" in config.sizes() and calm["probs"].ndim == 4
    weights = calm["probs"] if heads else calm["probs"][:, None]
    values = calm["v"] if "v" in calm else calm["zeroed_value"]
    values = values if heads else values[:, :, None]
    most = np.einsum("bhts,bshv->bthv", weights**2, values**2).reshape(1, *context.shape[1:])
    margin = np.sqrt(most) / float(1 - RATE) * sqrt(-log(ALPHA / 2) / (2 * ROWS))
    assert np.all(np.abs(context.mean(axis=0, keepdims=True) - calm["context"]) <= margin)


def averages(variant: str) -> bool:
    """Whether what its heads find are the weights, after dropout, times the values."""
    config = next(iter(contract.examples(variant).values()))
    return (
        config.family != "recurrent" and "the_output_is_the_weights_times_the_values" not in config.broken_relations()
    )


AVERAGING = [v for v in DROPPING if averages(v)]


@pytest.mark.parametrize(("tree", "variant"), ask_all(AVERAGING, "dot_product"))
def test_dropout_leaves_the_mean_output(tree: Tree, variant: str) -> None:
    """One query drawn for anew in every batch row: the mean is what evaluation gives.

    Key j adds 0 or p_j v_j / (1 - rate), so by Hoeffding's inequality the mean over R rows is further than m from its
    expectation with probability at most 2 exp(-2 R m^2 / sum_j (p_j v_j / (1 - rate))^2).
    """
    unbiased(tree, variant)


@pytest.mark.parametrize("variant", ["mha", "additive"])
def test_compiled_dropout_draws_what_eager_draws(variant: str) -> None:
    """Under `nnx.jit` the generator's state goes in and comes out: the same masks, call by call."""
    compiled_draws(TREES["jax"], variant)


def compiled_draws(tree: Tree, variant: str) -> None:
    config = dropping(variant)
    inputs = random_inputs(config, "plain", t=5, s=7)
    run = nnx.jit(lambda layer, given: tree.package.trace(layer, **given)[1])
    eager, compiled = in_training(tree, config, seed=1), in_training(tree, config, seed=1)
    for _ in range(2):
        tape = run(compiled, tree.arrays(inputs))
        for name, x in drawn_masks(tree, eager, inputs).items():
            assert same(np.asarray(tape[name]), x), name


# Again, elsewhere, alone ----------------------------------------------------------------------------------------------

# A digest of outputs, and of gradients where they need no compiler: runs here and in a process of its own.
DIGEST = """
import hashlib
from importlib import import_module
import numpy as np


def arrays(y):
    return [x for part in y for x in arrays(part)] if isinstance(y, tuple) else [y]


def results(package, layer, x):
    if package == "attn_np":
        y, pull = import_module(package).value_and_vjp(layer, x)
        grads = pull(np.ones_like(arrays(y)[0]))
        return [*arrays(y), *grads.inputs.values(), *grads.params.values()]
    if package == "attn_torch":
        import torch

        given = torch.from_numpy(x).requires_grad_()
        y = arrays(layer(given))
        found = [*y, *torch.autograd.grad(y[0].sum(), [given, *layer.parameters()])]
        return [a.detach().numpy() for a in found]
    return [np.asarray(a) for a in arrays(layer(x))]


def digest(package, layers):
    found = hashlib.sha256()
    for variant, fields in layers.items():
        x = np.random.default_rng(0).normal(size=(2, 9, 8)).astype("float32")
        for a in results(package, import_module(package).build(variant, seed=3, **fields), x):
            found.update(a.tobytes())
    return found.hexdigest()
"""
LAYERS = {
    "mha": {"d_model": 8, "num_heads": 2},
    "additive": {"query_dim": 8, "hidden_dim": 5},
    "luong": {"query_dim": 8},
    "gru": {"input_dim": 8, "hidden_dim": 5},
}


def elsewhere(package: str) -> None:
    code = f"{DIGEST}\nprint(digest({package!r}, {LAYERS!r}))"
    env = {**os.environ, "PYTHONHASHSEED": "1", "JAX_ENABLE_X64": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    here: dict[str, Any] = {}
    exec(DIGEST, here)
    assert done.stdout.split() == [here["digest"](package, LAYERS)]


def test_another_process_gives_the_same_bits(tree: Tree) -> None:
    """Weights, outputs and gradients, with another seed for Python's hashes."""
    elsewhere(tree.package.__name__)


WIDE = {"mha": {"d_model": 48, "num_heads": 4}, "gru": {"input_dim": 48, "hidden_dim": 31}}


def wide(variant: str, dtype: str) -> tuple[Case, Drawn]:
    """A call large enough for libraries to share it among threads."""
    config = contract.config(variant, **WIDE[variant])
    inputs = random_inputs(config, "plain", b=4, t=40)
    return Case(variant, "", "", dtype, given=config), Drawn(
        {n: x.astype(dtype) for n, x in inputs.items()}, {n: x.astype(dtype) for n, x in weights_of(config).items()}, 0
    )


def repeated(tree: Tree, variant: str) -> None:
    case, drawn = wide(variant, "float32")
    layer = tree.build(case.config, dtype="float32")
    want = tree(layer, drawn.inputs)
    for _ in range(10):
        assert all(same(x, y) for x, y in zip(tree(layer, drawn.inputs), want, strict=True))


@pytest.mark.parametrize("variant", WIDE)
def test_ten_calls_give_the_same_bits(tree: Tree, variant: str) -> None:
    repeated(tree, variant)


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threaded(package: str, variant: str) -> None:
    case, drawn = wide(variant, "float32")
    found, grads = reference(case, drawn, {}, precision_of("float32"))
    for n in (1, 2):
        with threads(n):
            got = run_torch(case, drawn, False, tree=package)
        for name, want in (found | grads).items():
            ratio = compare((got.outputs | got.grads)[name], want, "float32")["ratio"]
            assert ratio <= 1, f"{name} with {n} threads: {ratio}"


@pytest.mark.parametrize("variant", WIDE)
def test_one_thread_or_two(variant: str) -> None:
    """PyTorch's outputs and gradients stay within their bounds, however many threads share the work."""
    threaded("attn_torch", variant)


@contextmanager
def deterministic() -> Iterator[None]:
    """PyTorch refuses operations that may differ from call to call, and fills fresh memory with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def only_deterministic(tree: Tree, variant: str) -> None:
    config = next(iter(contract.examples(variant).values()))
    layer = tree.build(config)
    for call in ("plain", "full"):
        inputs = random_inputs(config, call)
        want = tree(layer, inputs)
        dy = np.random.default_rng(5).normal(size=want[0].shape)
        grads = tree.gradients(layer, inputs, dy)
        with deterministic():
            got = tree(layer, inputs)
            assert all(same(a, b) for a, b in zip(got, want, strict=True))
            assert first_difference(tree.gradients(layer, inputs, dy), grads) is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_deterministic_algorithms_are_all_that_is_used(variant: str) -> None:
    """`torch.use_deterministic_algorithms(True)` changes no bit and refuses nothing, forward and backward."""
    only_deterministic(TREES["torch"], variant)


def last_queries(tree: Tree) -> None:
    config = config_of("mha", "wide")
    inputs, params = random_inputs(config, "full", t=5, s=7), weights_of(config)
    want, layer = bounded(config, inputs, params)["y"], layer_of(tree, config, params)
    for n in (5, 1):
        few = {name: x[:, -n:] if name == "query" else x for name, x in inputs.items()}
        few |= {name: inputs[name][:, :, -n:] for name in ("mask", "bias", "keep")}
        assert compare(tree(layer, few)[0], want[:, 5 - n :])["ratio"] <= 1, n


def test_the_number_of_queries_does_not_matter(tree: Tree) -> None:
    """The last one by itself gets what it gets among others: what decoding with a cache relies on."""
    last_queries(tree)


# Vectorised -----------------------------------------------------------------------------------------------------------


def by_members(tree: Tree) -> None:
    config = config_of("mha", "split")
    members = [weights_of(config, seed) for seed in range(3)]
    inputs = random_inputs(config, "plain")
    layer, given = layer_of(tree, config, members[0]), tree.arrays(inputs)
    stacked = tree.arrays({name: np.stack([m[name] for m in members]) for name in members[0]})
    if tree.name == "torch":
        got = torch.func.vmap(lambda params: functional_call(layer, params, (), given))(stacked)
    else:
        graph, _, rest = nnx.split(layer, nnx.Param, ...)
        states = [nnx.state(layer_of(tree, config, m), nnx.Param) for m in members]
        states = jax.tree.map(lambda *x: jnp.stack(x), *states)
        got = jax.jit(jax.vmap(lambda params: nnx.merge(graph, params, rest)(**given)))(states)
    for y, params in zip(tree.numpy(got), members, strict=True):
        assert compare(y, bounded(config, inputs, params)["y"])["ratio"] <= 1


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_vmap_over_the_weights_is_an_ensemble(name: str) -> None:
    by_members(TREES[name])


# Derivatives beyond the first -----------------------------------------------------------------------------------------


@cache
def asked(variant: str) -> tuple[Case, Drawn, Arrays]:
    """A call of few steps, and a random direction for all its inputs and weights."""
    example = list(contract.examples(variant))[-2]
    config = config_of(variant, example)
    drawn = Drawn(random_inputs(config, "full", t=3, s=4), weights_of(config), 0)
    rng = np.random.default_rng(6)
    direction = {n: rng.normal(size=x.shape) for n, x in (drawn.inputs | drawn.params).items() if x.dtype.kind == "f"}
    return Case(variant, example, "full", "float64", given=config), drawn, direction


def textbook(config: Config) -> dict[str, str]:
    """Asks for the path that promises these derivatives, where there are several."""
    call = getattr(import_module(f"attn_np.{config.variant}"), config.class_name).__call__
    return {"implementation": "textbook"} if "implementation" in signature(call).parameters else {}


@cache
def along(variant: str) -> tuple[dict[str, Any], np.ndarray]:
    """J u as "y" and H u by names of inputs and weights, with bounds; and the gradient of y they belong to."""
    case, drawn, direction = asked(variant)

    def moving(name: str, x: np.ndarray) -> Any:
        return Dual(ErrArray(x, 0.0), ErrArray(direction[name], 0.0)) if name in direction else x

    with precision(precision_of("float64")):
        layer = numpy_layer(case, {n: moving(n, x) for n, x in drawn.params.items()})
        tape: dict[str, Any] = {}
        y = flat(layer(**{n: moving(n, x) for n, x in drawn.inputs.items()}, tape=tape))[0]
        dy = cotangent(y.shape)
        grads = layer.vjp(tape, Dual(ErrArray(dy, 0.0), ErrArray(np.zeros(dy.shape), 0.0)))
    # What only a second output reads has a gradient of 0 here, whatever moves.
    still = {n: ErrArray(np.zeros(g.shape), 0.0) for n, g in (grads.inputs | grads.params).items()}
    return {"y": y.d} | {n: getattr(g, "d", still[n]) for n, g in (grads.inputs | grads.params).items()}, dy


def torch_twice(tree: Tree, variant: str) -> Iterator[tuple[str, Arrays]]:
    """J u and H u by differentiating the gradient, and J u in forward mode."""
    case, drawn, direction = asked(variant)
    layer, more = layer_of(tree, case.config, drawn.params), textbook(case.config)
    leaves = {
        n: x.requires_grad_() for n, x in tree.arrays({n: x for n, x in drawn.inputs.items() if n in direction}).items()
    }
    leaves |= dict(layer.named_parameters())
    others = tree.arrays({n: x for n, x in drawn.inputs.items() if n not in direction})
    u, dy = {n: tree.array(direction[n]) for n in leaves}, tree.array(along(variant)[1]).requires_grad_()

    def forward(leaves: dict[str, Any]) -> Any:
        own = {n: x for n, x in leaves.items() if n in drawn.params}
        given = {n: x for n, x in leaves.items() if n not in own}
        return flat(functional_call(layer, own, (), given | others | more))[0]

    y = forward(leaves)
    grads = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True, materialize_grads=True)
    inner = torch.stack([torch.sum(g * x) for g, x in zip(grads, u.values(), strict=True)]).sum()
    targets = {"y": dy} | leaves
    found = torch.autograd.grad(inner, list(targets.values()), allow_unused=True)
    pairs = zip(targets.items(), found, strict=True)
    yield "double backward", {n: tree.numpy(torch.zeros_like(x) if g is None else g) for (n, x), g in pairs}
    detached = {n: x.detach() for n, x in leaves.items()}
    yield "forward mode", {"y": tree.numpy(torch.func.jvp(forward, (detached,), (u,))[1])}


def jax_twice(tree: Tree, variant: str) -> Iterator[tuple[str, Arrays]]:
    """J u in forward mode; H u forward over reverse, and reverse over reverse."""
    case, drawn, direction = asked(variant)
    layer, more = layer_of(tree, case.config, drawn.params), textbook(case.config)
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    moved = nnx.state(layer_of(tree, case.config, {n: direction[n] for n in drawn.params}), nnx.Param)
    floats = tree.arrays({n: x for n, x in drawn.inputs.items() if n in direction})
    others = tree.arrays({n: x for n, x in drawn.inputs.items() if n not in direction})

    def forward(x: Any) -> Any:
        return flat(nnx.merge(graph, x[1], rest)(**x[0], **others, **more))[0]

    def run(x: Any, u: Any, dy: Any) -> Any:
        grad = jax.grad(lambda x: jnp.vdot(dy, forward(x)))
        inner = lambda x: sum(map(jnp.vdot, jax.tree.leaves(grad(x)), jax.tree.leaves(u)))  # noqa: E731
        return jax.jvp(forward, (x,), (u,))[1], jax.jvp(grad, (x,), (u,))[1], jax.grad(inner)(x)

    u = (tree.arrays({n: direction[n] for n in floats}), moved)
    ju, forward_over, reverse_over = jax.jit(run)((floats, params), u, along(variant)[1])
    yield "forward mode", {"y": tree.numpy(ju)}
    for what, (inputs, weights) in (("forward over reverse", forward_over), ("reverse over reverse", reverse_over)):
        named = {".".join(map(str, path)): x[...] for path, x in nnx.to_flat_state(weights)}
        yield what, {n: tree.numpy(x) for n, x in (inputs | named).items()}


def twice(tree: Tree, variant: str) -> None:
    want = along(variant)[0]
    for what, got in (torch_twice if tree.name == "torch" else jax_twice)(tree, variant):
        for name, x in got.items():
            ratio = compare(x, want.get(name, ErrArray(np.zeros(x.shape), 0.0)))["ratio"]
            assert ratio <= 1, f"{what}, {name}: error/bound {ratio}"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # forward mode's own decompositions use it
@pytest.mark.parametrize(
    ("name", "variant"),
    [("torch", v) for v in VARIANTS] + [("jax", v) for v in ("mha", "dot_product", "additive", "gru")],
)
def test_second_derivatives_and_forward_mode(name: str, variant: str) -> None:
    """J u and H u along one direction of all inputs and weights, for every entry, within bounds.

    The reference's own code gives both, forward and hand-written backward, run on values with tangents.
    """
    twice(TREES[name], variant)


# Planted bugs ---------------------------------------------------------------------------------------------------------

POSITIONS = "in_window(arange(t, like)[None, :] + (s - t),"
AXIS = "torch.sum(e, dim=axis, keepdim=True)"
DRAW, TORCH_DRAW = "self.rng.random(shape)", "torch.rand(shape, device=like.device, dtype=torch.float32)"

# What is wrong, in which tree, file, edit, and the question that must see it.
BUGS: list[tuple[str, str, str, str, str, Callable[[Tree], None]]] = [
    ("window one key wider", "numpy", SHARED, "relative_position >= -left) & (", "relative_position >= -left - 1) & (",
     lambda t: rows_seen(t, "itself-and-two-before")),
    ("window without its own key", "numpy", SHARED, ") & (relative_position <= right)",
     ") & (relative_position < right)",
     lambda t: rows_seen(t, "itself-alone")),
    ("aligned at the first key", "torch", SHARED, POSITIONS, POSITIONS.replace(" + (s - t)", ""),
     lambda t: rows_seen(t, "causal-few-queries")),
    ("rows above the first key see it", "numpy", SHARED, POSITIONS, POSITIONS.replace("s - t", "max(s - t, 0)"),
     lambda t: rows_seen(t, "causal-few-keys")),
    ("mask aligned at the left", "numpy", SHARED, "(1,) * (len(source) - allowed.ndim) + tuple(allowed.shape)",
     "tuple(allowed.shape) + (1,) * (len(source) - allowed.ndim)", lambda t: ranks(t, 2)),
    ("bias gradient as large as the scores", "numpy", SHARED, "sum_to(dscores, bias.shape)", "dscores",
     lambda t: ranks(t, 1)),
    ("empty rows divided by zero", "torch", SHARED, "where(total == 0, 1.0, total)", "total", lambda t: empty_rows(t)),
    ("-inf shows and the rest is hidden", "numpy", SHARED, "bias != -inf", "bias == -inf",
     lambda t: minus_infinity(t)),
    ("-inf taken for an overflow", "torch", SHARED, "bias != -inf", "bias == bias",
     lambda t: only_minus_infinity(t)),
    ("overflow taken for a hidden row", "numpy", SHARED, "np.where(overflowed, np.nan, total)", "total",
     lambda t: overflow(t)),
    ("+inf not subtracted", "numpy", SHARED, "np.where(top == -np.inf", "np.where(np.isinf(top)",
     lambda t: plus_infinity(t)),
    ("NaN made 0", "torch", SHARED, "return e / where(total == 0, 1.0, total)",
     "return torch.nan_to_num(e / where(total == 0, 1.0, total))", lambda t: overflow(t)),
    ("scores kept in float16", "numpy", SHARED, "q, k) * scale)", "q, k).astype('float16') * scale)",
     lambda t: huge_scores(t)),
    ("epsilon under the weights", "numpy", SHARED, "np.where(total == 0, 1.0, total)",
     "np.where(total == 0, 1.0, total + 1e-6)", lambda t: uniform(t, "float32")),
    ("a scale of 0 taken for none", "torch", SHARED, "if scale is None else float", "if not scale else float",
     lambda t: scales(t)),
    ("scale without its sign", "numpy", SHARED, "q, k) * scale)", "q, k) * abs(scale))", lambda t: scales(t)),
    ("elements in the order of memory", "numpy", SHARED, "a.reshape(length(batch), length(rows), length(summed))",
     "a.reshape((length(batch), length(rows), length(summed)), order='A')", lambda t: any_strides(t, "fortran")),
    ("a rate a third too high", "numpy", SHARED, f"{DRAW} >= rate", f"{DRAW} >= rate + 0.08",
     lambda t: drawn_right(t, "additive")),
    ("one dropout mask for all batch rows", "torch", SHARED, TORCH_DRAW,
     TORCH_DRAW.replace("shape,", "(1, *shape[1:]),").join(("", ".expand(shape)")), lambda t: drawn_right(t, "luong")),
    ("one dropout mask for all heads", "torch", SHARED, TORCH_DRAW,
     TORCH_DRAW.replace("shape,", "(shape[0], 1, *shape[2:]),").join(("", ".expand(shape)")),
     lambda t: drawn_right(t, "mha")),
    ("neighbours dropped together", "numpy", SHARED, f"{DRAW} >= rate",
     f"(lambda x: 0.5 * (x + np.roll(x, 1, -1)))({DRAW}) >= 0.354", lambda t: drawn_right(t, "mha")),
    ("a seed that is not used", "numpy", SHARED, DRAW, "np.random.default_rng(0).random(shape)",
     lambda t: seeded(t, "mha")),
    ("a generator that nobody seeded", "numpy", SHARED, DRAW, "np.random.default_rng().random(shape)",
     lambda t: seeded(t, "gru")),
    ("a rate of 0 taken for a default", "torch", SHARED, "or rate == 0:", "or (rate := rate or 0.1) == 0:",
     lambda t: no_rate(t, "gru")),
    ("kept weights not divided", "numpy", SHARED, "weights / (1.0 - rate)", "weights", lambda t: unbiased(t, "mha")),
    ("noise in the last digits", "numpy", SHARED, "y = einsum(subscripts, x, weight)",
     "y = einsum(subscripts, x, weight) * (1.0 + 1e-6 * np.random.default_rng().random())",
     lambda t: repeated(t, "mha")),
    ("numbers that depend on the threads", "torch", SHARED, "else einsum(subscripts, x, weight)",
     "else einsum(subscripts, x, weight) * (1.0 + 1e-3 * torch.get_num_threads())",
     lambda t: threaded(t.package.__name__, "gru")),
    ("memory read before it is written", "torch", SHARED, "like.new_zeros(shape)", "like.new_empty(shape)",
     lambda t: only_deterministic(t, "gru")),
    ("aligned at the first key, in a layer", "numpy", SHARED, POSITIONS, POSITIONS.replace(" + (s - t)", ""),
     lambda t: last_queries(t)),
    ("weights of one member for all", "torch", SHARED, "else einsum(subscripts, x, weight)",
     "else einsum(subscripts, x, torch.zeros_like(weight) + 0.1)", lambda t: by_members(t)),
    ("a gradient that is not differentiable", "torch", SHARED, f"total = {AXIS}",
     f"e = e * (1.0 + (e - e.detach()) ** 2)\n    total = {AXIS}", lambda t: twice(t, "dot_product")),
    ("a gate whose gradient is not differentiable", "torch", "gru.py",
     "n = tanh(x_gate_inputs[:, 2] + r * h_gate_inputs[:, 2])",
     "n = tanh(x_gate_inputs[:, 2] + r * h_gate_inputs[:, 2])\n    n = n + (n - n.detach()) ** 2",
     lambda t: twice(t, "gru")),
    ("a second derivative that is 0", "jax", SHARED, "change = weights * tangents[0]\n",
     "change = jax.lax.stop_gradient(weights) * tangents[0]\n",
     lambda t: twice(t, "dot_product")),
]  # fmt: skip


@contextmanager
def with_bug(name: str, file: str, old: str, new: str) -> Iterator[Tree]:
    """A tree like another, with one edit of its source."""
    package = TREES[name].package.__name__
    with planted(Mutant("planted", file, old, new, "", ""), package) as alias:
        found = copy.copy(TREES[name])
        found.package = import_module(alias)
        yield found


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0].replace(" ", "-"))
def test_each_rule_sees_a_planted_bug(bug: Any) -> None:
    _, name, file, old, new, ask = bug
    with with_bug(name, file, old, old) as whole:
        ask(whole)
    with with_bug(name, file, old, new) as spoilt, pytest.raises(AssertionError):
        ask(spoilt)


def test_drawing_outside_the_state_is_seen() -> None:
    """A mask that NumPy draws while JAX traces is the same in every compiled call."""
    old = "jax.random.bernoulli(self.rngs(), 1 - rate, shape)"
    new = "jnp.asarray(np.random.default_rng().random(shape) >= rate)"
    with with_bug("jax", SHARED, old, new) as spoilt, pytest.raises(AssertionError):
        compiled_draws(spoilt, "mha")
