"""A bias by distance on the fast paths: one number for each diagonal, in blocks so small that edges fall everywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np import _attend, _kernels
from attn_np.contract import _patterns as patterns
from attn_np.contract._tape import Residuals
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.bounds.softmax import recompute
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.kernels.test_kernels import BLOCKS
from parity_tests.tests.witness import cotangent, ratio

H, WIDTH = 6, 3
# By name: options, arrays beside q, k and v, key/value heads, queries, keys, the heads of the bias.
CASES: dict[str, tuple[dict[str, Any], str, int, int, int, int]] = {
    "all keys": ({}, "", 6, 11, 13, 6),
    "one bias for all heads": ({"causal": True}, "", 3, 13, 13, 1),
    "window": ({"window": (4, 2)}, "", 2, 13, 11, 6),
    "more queries than keys": ({"causal": True, "scale": -0.5}, "", 2, 13, 7, 6),
    "mask and bias": ({}, "mask bias", 1, 11, 13, 6),
    "sinks and cap": ({"causal": True, "softcap": 1.5}, "sinks", 2, 11, 17, 6),
    "pattern": ({"pattern": patterns.Chunks(4, 1)}, "", 3, 13, 13, 6),
    "steep": ({}, "", 6, 13, 13, 6),
    "steep, near keys hidden": ({}, "near", 6, 13, 13, 6),
    "diagonals that hide": ({}, "", 2, 11, 13, 6),
}
# Beyond `parity_tests.judge.kernels.SMALL`: PyTorch's own kernel in blocks, too.
SMALL = {tree: settings[0] for tree, settings in kernels.SMALL.items()}
SMALL["torch"] = SMALL["torch"] | {"sdpa.ROWS": 4}
SMALL["jax"] = SMALL["jax"] | {"DISTANCE_QUERIES": 4}


def drawn(case: str) -> tuple[Arrays, Arrays, dict[str, Any]]:
    """The arrays of a call, the bias as `1 h 1 n` by diagonal, and the options."""
    options, names, g, t, s, heads = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes = {"q": (2, t, H, WIDTH), "k": (2, s, g, WIDTH), "v": (2, s, g, WIDTH)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    by_diagonal = rng.normal(size=(1, heads, 1, t + s - 1))
    distance = np.abs(np.arange(t + s - 1) - (s - 1))
    if case.startswith("steep"):  # the weights of all but the nearest keys are below the smallest number
        by_diagonal = by_diagonal - 300.0 * distance
    if case == "diagonals that hide":
        by_diagonal[..., distance > 3] = -np.inf
    if "mask" in names:
        arrays["mask"] = rng.random((2, H, t, s)) < 0.7
        arrays["mask"][0, :, 2] = arrays["mask"][1, :, :, 4] = False
    if "near" in names:
        arrays["mask"] = np.abs(np.arange(t)[:, None] - np.arange(s)) >= 4
    if "bias" in names:
        arrays["bias"] = rng.normal(size=(H, 1, s))
    if "sinks" in names:
        arrays["sinks"] = rng.normal(size=H)
    return arrays, {"distances": by_diagonal}, options


def picked(table: Any, places: Any) -> Any:
    """The numbers of a table `1 h 1 n`, in every tree: of places `1 t s` as `1 h t s`, of `1 1 n` as `1 h 1 n`."""
    return table[0, :, 0][:, places[0]][None]


def expected(tree: str, case: str) -> dict[str, ErrArray]:
    """What the textbook gives of that bias by pairs, with bounds; the gradient of a diagonal is that of its pairs."""
    arrays, given, options = drawn(case)
    t, s = arrays["q"].shape[1], arrays["k"].shape[1]
    index = np.arange(s) - np.arange(t)[:, None] + t - 1
    by_pair = given["distances"][:, :, 0][..., index]
    by_pair = by_pair + arrays.get("bias", 0.0)
    dy = ErrArray(cotangent(arrays["q"].shape), 0.0)
    exact: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype == float else x for n, x in arrays.items()}
    with precision(fast_precision_of(tree, "float64")), np.errstate(all="ignore"):
        exact["bias"] = ErrArray(np.broadcast_to(by_pair, (2, H, t, s)).copy(), 0.0)
        want = kernels.by_numpy(exact, dy, {"scale": None, "softcap": None} | options, "textbook")
        dpairs = want.pop("dbias")
        hot = (index[..., None] == np.arange(t + s - 1)).astype(float)
        axes = (0, 2, 3) if given["distances"].shape[1] > 1 else (0, 1, 2, 3)
        shape = given["distances"].shape
        want["ddistances"] = np.sum(dpairs.reshape(2, H, t, s, 1) * hot, axis=axes).reshape(shape)
        if "bias" in arrays:
            want["dbias"] = np.sum(dpairs, axis=(0, 2)).reshape(H, 1, s)
    return want


def found(tree: Tree, case: str) -> Arrays:
    """What a tree's fast path gives, forward and backward."""
    arrays, given, options = drawn(case)
    low, dy = 1 - arrays["k"].shape[1], cotangent(arrays["q"].shape)
    attend = import_module(f"{tree.package.__name__}._attend").attend
    options = options | {"implementation": "fused"}
    if tree.name == "numpy":
        tape: Any = Residuals()
        call = options | {"distance_bias": lambda offset: picked(given["distances"], offset - low), "tape": tape}
        context, _ = attend(**arrays, **call)
        recompute(tape)
        backward = {name: x for name, x in options.items() if name in ("scale", "softcap")}
        heads = arrays["k"].shape[2]
        dq, dk, dv, dbias = _attend.attend_vjp(tape, dy, **backward, kv_heads=heads, by_distance=True)
        dbias = None if "bias" not in arrays else dbias
        ddistances = _attend.distance_bias_vjp(tape, given["distances"].shape)
        every = {"context": context, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": tape.get("dsinks")}
        return {name: x for name, x in (every | {"ddistances": ddistances}).items() if x is not None}
    floats = {name: x for name, x in (arrays | given).items() if x.dtype == float}
    rest = tree.arrays({name: x for name, x in arrays.items() if name not in floats})

    def call_of(floats: dict[str, Any]) -> Any:
        others = {name: x for name, x in floats.items() if name != "distances"}
        bias = lambda offset: picked(floats["distances"], offset - low)  # noqa: E731
        return attend(**others, **rest, **options, distance_bias=bias)[0]

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


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("case", CASES)
def test_a_bias_by_distance_is_that_bias_by_pairs(case: str, tree: Tree) -> None:
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
        real = _kernels.Block.of_diagonals
        late = lambda block, x, keys, t: np.roll(real(block, x, keys, t), 1, -1)  # noqa: E731
        patch.setattr(_kernels.Block, "of_diagonals", late)
    elif tree.name == "torch":
        blocks = import_module("attn_torch._kernels.blocks")
        at = blocks.BlockedCall.in_strip

        def late(call: Any, block: Any) -> Any:
            part = at(call, block)
            return part._replace(s=slice(max(0, part.s.start - 1), part.s.stop - (part.s.start > 0)))

        patch.setattr(blocks.BlockedCall, "in_strip", late)
    else:
        module = import_module("attn_jax._kernels")
        at = module._in_strip
        patch.setattr(module, "_in_strip", lambda plan, i, j: at(plan, i, j) - 1)


def far_blocks_skipped(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    patch.setattr(_kernels, "score_range", lambda *given: (-np.inf, -1e9))


def far_keys_alone_stay_skipped(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = _kernels.weighted_sums
    patch.setattr(_kernels, "weighted_sums", lambda args, block, q, bounded: real(args, block, q, True))


def gradient_of_one_block(patch: pytest.MonkeyPatch, tree: Tree) -> None:
    real = _kernels.add_to_strip

    def first(strip: Any, dscores: Any, queries: Any, keys: Any, t: int) -> None:
        if queries.start == 0:
            real(strip, dscores, queries, keys, t)

    patch.setattr(_kernels, "add_to_strip", first)


PLANTED: list[tuple[str, Callable[[pytest.MonkeyPatch, Tree], None], str]] = [
    ("numpy", one_key_late, "all keys"),
    ("torch", one_key_late, "mask and bias"),
    ("jax", one_key_late, "all keys"),
    ("numpy", far_blocks_skipped, "all keys"),
    ("numpy", far_keys_alone_stay_skipped, "steep, near keys hidden"),
    ("numpy", gradient_of_one_block, "all keys"),
]


@pytest.mark.parametrize(("name", "plant", "case"), PLANTED)
def test_a_planted_bug_is_seen(name: str, plant: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, TREES[name])
    with in_small_blocks(TREES[name]), np.errstate(all="ignore"):
        worst = ratios(TREES[name], case)
    assert not max(worst.values()) <= 1
