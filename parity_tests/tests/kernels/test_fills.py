"""Additive masks as the field writes them: every fill, on every path, forward and backward, in three trees."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_np
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT, precision, precision_of
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import ratio

B, T, S, H, G, WIDTH = 2, 7, 11, 4, 2, 4
SCALE = 0.5
LOWEST = {
    "float16": -65504.0,
    "bfloat16": -(2.0**128 - 2.0**120),
    "float32": float(np.finfo(np.float32).min),
    "float64": float(np.finfo(np.float64).min),
}
# By name: what a shown key gets and what a hidden one does.
FILLS: dict[str, tuple[float, float]] = {f"lowest {name}": (0.0, x) for name, x in LOWEST.items()}
FILLS |= {f"{x:g}": (0.0, x) for x in (-np.inf, -1e4, -1e9, -1e30, LOWEST["float32"] / 2)}
FILLS["1e4 or -1e4"] = 1e4, -1e4
# One mask for all, for each sequence, for each head, and padding.
SHAPES = ((T, S), (B, 1, T, S), (B, H, T, S), (B, 1, 1, S))
# Where the bias has a gradient PyTorch's own kernel is not taken.
PATHS = ("textbook", "auto", "auto, bias without a gradient", "blocks")


def given(fill: str, dtype: str, shape: tuple[int, ...]) -> tuple[Arrays, np.ndarray]:
    """The arrays of a call and the gradient of its context. Of query 2, or of sequence 0, every key is filled.

    Queries and keys are such that products, and so the scores, are exact in any order.
    """
    rng = np.random.default_rng(len(fill))
    arrays: Arrays = {n: rng.integers(-6, 7, (B, m, h, WIDTH)) / 4.0 for n, m, h in (("q", T, H), ("k", S, G))}
    arrays["v"], shown = rng.normal(size=(B, S, G, WIDTH)), rng.random(shape) < 0.6
    if shape[-2] > 1:
        shown[..., 2, :] = False
    else:
        shown[0] = False
    arrays["bias"] = np.where(shown, *FILLS[fill])
    return {name: x.astype(dtype) for name, x in arrays.items()}, rng.normal(size=(B, T, H, WIDTH)).astype(dtype)


def expected(arrays: Arrays, dy: np.ndarray, tree: str, path: str) -> dict[str, Any]:
    """What the textbook gives of the scores and the bias, added once in the type, with bounds.

    NumPy's blocks add them in units of log 2.
    """
    dtype, exact = dy.dtype.name, {name: ErrArray(x.astype(np.float64), 0.0) for name, x in arrays.items()}
    scores = np.einsum("bthk,bshk->bhts", arrays["q"], np.repeat(arrays["k"], H // G, 2)) * dy.dtype.type(SCALE)
    with np.errstate(over="ignore"):
        added = (scores + arrays["bias"]).astype(np.float64) - scores
        error = np.where(np.isfinite(added), 4 * UNIT[dtype] * np.abs(added), 0.0)
    rounds = tree == "numpy" and path != "textbook"
    exact["bias"] = ErrArray(added, error if rounds else 0.0)
    with precision(precision_of(dtype)), np.errstate(all="ignore"):
        want = kernels.by_numpy(
            exact, ErrArray(dy.astype(np.float64), 0.0), {"scale": SCALE, "softcap": None}, "textbook"
        )
        axes = tuple(i for i, n in enumerate((1,) * (4 - arrays["bias"].ndim) + arrays["bias"].shape) if n == 1)
        want["dbias"] = np.sum(want["dbias"], axis=axes).reshape(arrays["bias"].shape)
    return want


@cache
def compiled(path: str) -> Any:
    implementation = "textbook" if path == "textbook" else "auto"

    def both(arrays: Any, dy: Any) -> Any:
        attend = TREES["jax"].package.attend
        context, pull = jax.vjp(lambda x: attend(**x, scale=SCALE, implementation=implementation)[0], arrays)
        return context, pull(dy)[0]

    return jax.jit(both)


def results(tree: Tree, arrays: Arrays, dy: np.ndarray, path: str) -> Arrays:
    options: dict[str, Any] = {"scale": SCALE, "implementation": "textbook" if path == "textbook" else "auto"}
    with kernels.blocks(tree.package.__name__, kernels.SMALL[tree.name][0] if path == "blocks" else {}):
        if tree.name == "numpy":
            (context, _), pull = attn_np.value_and_vjp(attn_np.attend, **arrays, **options)
            return {"context": context} | {f"d{name}": x for name, x in pull(dy).inputs.items()}
        if tree.name == "jax":
            context, grads = compiled(path)(tree.arrays(arrays), tree.array(dy))
            return {"context": tree.numpy(context)} | {f"d{name}": tree.numpy(x) for name, x in grads.items()}
        leaves = tree.arrays(arrays)
        rest = {"bias": leaves.pop("bias")} if "without" in path else {}
        context, _ = tree.package.attend(**{n: x.requires_grad_() for n, x in leaves.items()}, **rest, **options)
        grads = torch.autograd.grad(context, list(leaves.values()), tree.array(dy))
        return {"context": tree.numpy(context)} | {f"d{n}": tree.numpy(x) for n, x in zip(leaves, grads, strict=True)}


def weight_sum_error(found: Arrays, arrays: Arrays, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much the weights of a key/value head's queries do not add up to 1 in the gradient of the values, and the
    bound of right ones: the sum of that over the keys, less the sum of dy over the queries that see a key.
    """
    seen = np.any(np.broadcast_to(arrays["bias"], (B, H, T, S)) > -np.inf, -1).swapaxes(1, 2)[..., None]
    of_group = np.where(seen, dy, 0.0).astype(np.float64).reshape(B, T, G, H // G, WIDTH)
    size = np.abs(of_group).sum((1, 3))
    terms = (
        T * H // G + 2 * S + WIDTH + 32
    )  # roundings that follow each other, those of exp and of its argument included
    return np.abs(found["dv"].astype(np.float64).sum(1) - of_group.sum((1, 3))), 4 * terms * UNIT[dy.dtype.name] * size


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", TREES)
def test_every_fill_is_the_number_that_it_is(name: str, path: str) -> None:
    """Added to the score and rounded: a row filled whole has the weights of what is left of its scores."""
    tree = TREES[name]
    if name != "torch" and "without" in path:
        return
    sdpa = name == "torch" and "without" in path
    for dtype in ("float32", "float64") if name != "jax" else ("float32",):
        for fill in FILLS if dtype == "float64" else [x for x in FILLS if x != "lowest float64"]:
            for shape in SHAPES[list(FILLS).index(fill) % 2 :: 2] if name != "jax" else SHAPES[1::2]:
                arrays, dy = given(fill, dtype, shape)
                found, want = results(tree, arrays, dy, path), expected(arrays, dy, name, path)
                assert all(np.isfinite(x).all() for x in found.values()), (fill, dtype, shape)
                # The gradients of PyTorch's kernel where a row is filled with a number: below.
                judged = ("context",) if sdpa and min(FILLS[fill]) > -np.inf else tuple(found)
                ratios = {array: ratio(found[array], want[array]) for array in judged}
                assert max(ratios.values()) <= 1, (fill, dtype, shape, ratios)
                error, bound = weight_sum_error(found, arrays, dy)
                if "dv" in judged:
                    assert np.all(error <= bound), (fill, dtype, shape)


def test_from_which_size_gradients_of_pytorchs_kernel_differ() -> None:
    """What the documentation says. A row of nothing but a bias of -x: in the gradients its weights are off by up to x
    times the unit of rounding, relative to themselves; from 2^24 on in float32 they may be anything.
    """
    rng, unit, tree = np.random.default_rng(0), UNIT["float32"], TREES["torch"]
    arrays: Arrays = {n: rng.normal(size=(B, m, h, WIDTH)) for n, m, h in (("q", T, H), ("k", S, G), ("v", S, G))}
    dy, worst = np.abs(rng.normal(size=(B, T, H, WIDTH))).astype(np.float32), {}
    for size in (2.0**4, 2.0**10, 2.0**16, 2.0**20, 2.0**26, 2.0**30):
        arrays["bias"] = np.full((T, S), -size)
        given = {name: x.astype(np.float32) for name, x in arrays.items()}
        error, bound = weight_sum_error(results(tree, given, dy, PATHS[2]), given, dy)
        sums = np.abs(dy).reshape(B, T, G, H // G, WIDTH).sum((1, 3))
        assert size * unit > 1 or np.all(error <= bound + np.expm1(2 * size * unit) * sums)
        worst[size] = float((error / sums).max())
    assert worst[2.0**16] > 2.0**-12 > worst[2.0**4]  # no tolerance: where errors are to be seen
    assert min(worst[2.0**26], worst[2.0**30]) > 0.5
