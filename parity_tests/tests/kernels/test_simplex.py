"""`softmax` and `entmax` as functions: in the three trees, against exact sums, with masks, gradients and refusals."""

from decimal import Decimal, localcontext
from functools import partial
from itertools import cycle, pairwise
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_np
from attn_np.contract._package import lazy_namespace
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.judging import compare
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, same
from parity_tests.tests.witness import ratio

ALPHAS = (1, 1.0625, 1.25, 1.5, 1.75, 2, 2.0625, 3.0, 6, 20)


def given(dtype: str = "float64", axis: int = -1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, who may be seen, and a gradient; one row sees nothing, one a single key, one equal scores."""
    rng = np.random.default_rng(11)
    scores, allowed, dy = rng.normal(size=(3, 5, 7)), rng.random((3, 5, 7)) < 0.7, rng.normal(size=(3, 5, 7))
    allowed[1, 2], allowed[0, 1], scores[2, 0] = False, np.arange(7) == 4, 0.375
    scores, allowed, dy = (np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in (scores, allowed, dy))
    return scores.astype(dtype), allowed, dy.astype(dtype)


def held(alpha: float, scores: np.ndarray, mask: np.ndarray | None, dy: np.ndarray, axis: int) -> dict[str, ErrArray]:
    """Weights and gradient with bounds; where the support is a decision, the rule goes on from the weights found."""
    with precision(precision_of(scores.dtype.name)):
        carried: Any = ErrArray(scores, 0.0)
        probs: Any = attn_np.entmax(carried, mask, alpha=alpha, axis=axis)
        found: Any = ErrArray(probs.v, 0.0) if alpha == 2 else probs
        rule = vars(attn_np.entmax)["vjp"]
        return {"probs": probs, "dscores": rule({"y": found}, ErrArray(dy, 0.0), alpha=alpha, axis=axis)["scores"]}


def results(tree: Tree, call: Any, scores: np.ndarray, mask: np.ndarray | None, dy: np.ndarray) -> Arrays:
    seen = None if mask is None else tree.array(mask)
    if tree.name == "numpy":
        probs, pull = attn_np.value_and_vjp(call, scores, seen)
        grad = pull(dy).inputs["scores"]
    elif tree.name == "torch":
        leaf = torch.from_numpy(scores).requires_grad_()
        probs = call(leaf, seen)
        (grad,) = torch.autograd.grad(probs, leaf, torch.from_numpy(dy))
    else:
        probs, back = jax.vjp(lambda x: call(x, seen), tree.array(scores))
        (grad,) = back(tree.array(dy))
    return {"probs": tree.numpy(probs), "dscores": tree.numpy(grad)}


@pytest.mark.parametrize(
    ("alpha", "dtype"), [*((alpha, "float64") for alpha in ALPHAS), (1.25, "float32"), (10, "float32")]
)
def test_weights_and_gradients_stay_within_their_bounds(alpha: float, tree: Tree, dtype: str) -> None:
    axis = 1
    scores, allowed, dy = given(dtype, axis)
    call = partial(tree.package.entmax, alpha=alpha, axis=axis)
    for mask in (allowed, None):
        want = held(alpha, scores, mask, dy, axis)
        for array, got in results(tree, call, scores, mask, dy).items():
            assert got.dtype == dtype
            assert np.isfinite(want[array].b).all(), array
            assert compare(got.astype(np.float64), want[array])["ratio"] <= 1, array
            assert mask is None or not np.any(got[~mask]), array


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax_is_entmax_at_1(tree: Tree, axis: int) -> None:
    scores, mask, dy = given()
    got = results(tree, partial(tree.package.softmax, axis=axis), scores, mask, dy)
    want = results(tree, partial(tree.package.entmax, alpha=1, axis=axis), scores, mask, dy)
    assert all(same(x, want[name]) for name, x in got.items())


@pytest.mark.parametrize("alpha", [1, 1.25, 1.5])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_mask_may_have_fewer_axes_and_axes_of_1(name: str, alpha: float) -> None:
    """It is the mask of all axes that it is broadcast to, along whichever axis the weights add up to 1."""
    tree, rng, scores = TREES[name], np.random.default_rng(5), given()[0]
    for axis in (-3, -2, 0, 1, 2):
        own = rng.random(3) < 0.5
        mask = rng.random(tuple(np.where(own, scores.shape, 1))[rng.integers(3) :]) < 0.7
        whole = np.ascontiguousarray(np.broadcast_to(mask, scores.shape))
        found, want = (
            tree.package.entmax(tree.array(scores), tree.array(x), alpha=alpha, axis=axis) for x in (mask, whole)
        )
        assert same(tree.numpy(found), tree.numpy(want)), (axis, mask.shape)


def exact(row: list[float], alpha: float) -> list[float]:
    """Entmax with fifty digits, by the threshold of its definition: sum ((alpha - 1) s - tau)^(1 / (alpha - 1)) = 1."""
    with localcontext(prec=50):
        power = 1 / (Decimal(alpha) - 1)
        z = [(Decimal(alpha) - 1) * Decimal(x) for x in row]
        low, high = max(z) - 1, max(z)
        for _ in range(170):
            middle = (low + high) / 2
            heavy = sum((x - middle) ** power for x in z if x > middle) >= 1
            low, high = (middle, high) if heavy else (low, middle)
        return [float((x - low) ** power) if x > low else 0.0 for x in z]


def sums_and_weights(row: np.ndarray, probs: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """With fifty digits, by equation 10 less that of the smallest weight, which is taken from `probs`: all weights; and
    for each score the sum of the weights if the threshold were there.
    """
    with localcontext(prec=50):
        power, scores = Decimal(alpha) - 1, [Decimal(float(x)) for x in row]

        def weights(base: Decimal, threshold: Decimal) -> list[Decimal]:
            raised = [base + power * (x - threshold) for x in scores]
            return [x ** (1 / power) if x > 0 else Decimal(0) for x in raised]

        smallest = min((p, x) for p, x in zip(probs.tolist(), scores, strict=True) if p > 0)
        all_weights = weights(Decimal(smallest[0]) ** power, smallest[1])
        sums = [sum(weights(Decimal(0), x)) for x in scores]
        return np.array([float(x) for x in sums]), np.array([float(x) for x in all_weights])


@pytest.mark.parametrize(("name", "dtype"), [("numpy", "float64"), ("numpy", "float32"), ("torch", "float32")])
@pytest.mark.parametrize("alpha", [2.0625, 2.5, 4, 10, 20, 1000])
def test_weights_that_rise_steeply_solve_their_equation(alpha: float, name: str, dtype: str) -> None:
    """Where a threshold to within a rounding says nothing: the equation is asked of the weights found."""
    tree, rng = TREES[name], np.random.default_rng(2)
    scores = (rng.normal(size=(24, 17)) * np.repeat([1, 1e-3, 1e-30, 1e6], 6)[:, None]).astype(dtype)
    scores[0], scores[1, 4:] = 0.375, scores[1, :1]
    found = tree.numpy(tree.package.entmax(tree.array(scores), alpha=alpha))
    bounds = held(alpha, scores, None, scores, -1)["probs"].b
    for row, probs, bound in zip(scores, found, bounds, strict=True):
        sums, weights = sums_and_weights(row, probs, alpha)
        assert np.all(np.abs(np.where(probs > 0, weights - probs, 0.0)) <= bound)
        assert abs(weights.sum() - 1) <= bound.sum()
        assert np.all(np.where(probs > 0, sums <= 1 + bound.sum(), sums >= 1 - bound.sum()))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_add_up_to_one_at_every_alpha(dtype: str, tree: Tree) -> None:
    """Within the bounds of their rounding, which are less than half of the digits; those of (alpha - 1) score count
    1 / (alpha - 1) times.
    """
    alphas = {"numpy": (1.01, 1.3, 1.99, 2.01, 3, 4, 6, 10, 20, 64), "torch": (1.01, 4, 10, 20), "jax": (1.01, 20)}
    for alpha, scale in zip(alphas[tree.name], cycle((1.0, 1e-3))):
        scores = (np.random.default_rng(0).normal(size=(50, 17)) * scale).astype(dtype)
        bound = held(alpha, scores, None, scores, -1)["probs"].b
        assert bound.max() * min(alpha - 1, 1) <= np.finfo(dtype).eps ** 0.5
        probs = tree.numpy(tree.package.entmax(tree.array(scores), alpha=alpha)).astype(np.float64)
        assert np.all(np.abs(probs.sum(-1) - 1) <= bound.sum(-1)), alpha


@pytest.mark.parametrize("alpha", [1.0625, 1.25, 1.75, 3.0])
def test_exact_sums(alpha: float) -> None:
    scores, mask, dy = given()
    want, found = held(alpha, scores, mask, dy, -1)["probs"], np.zeros(scores.shape)
    for index in np.ndindex(2, 5):
        seen = np.flatnonzero(mask[index])
        if seen.size:
            found[index][seen] = exact(scores[index][seen].tolist(), alpha)
    assert ratio(found[:2], ErrArray(want.v[:2], want.b[:2])) <= 1


def test_the_larger_alpha_the_fewer_keys() -> None:
    scores, mask, _ = given()
    counts = [np.sum(attn_np.entmax(scores, mask, alpha=alpha) > 0, -1) for alpha in ALPHAS]
    assert all(np.all(more >= fewer) for more, fewer in pairwise(counts))
    assert np.sum(counts[0]) > np.sum(counts[-1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("alpha", [1, 1.25, 1.5, 2, 3.0])
def test_hidden_scores_may_hold_anything_and_those_in_sight_spoil_their_row_alone(tree: Tree, alpha: float) -> None:
    scores, mask, dy = given()
    mask[0, 0], mask[0, 3] = True, np.arange(7) > 2
    call = partial(tree.package.entmax, alpha=alpha)
    want = results(tree, call, scores, mask, dy)
    for value in (np.nan, np.inf, -np.inf):
        got = results(tree, call, np.where(mask, scores, value), mask, dy)
        assert all(np.array_equal(got[array], x) for array, x in want.items())
    for value in (np.nan, np.inf):
        scores[0, 0, 3] = value
        got = results(tree, call, scores, mask, dy)["probs"]
        assert np.isnan(got[0, 0]).all()
        assert np.array_equal(got[0, 1:], want["probs"][0, 1:])
    scores[0, 0] = -np.inf
    assert np.isnan(results(tree, call, scores, None, dy)["probs"][0, 0]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_widened_first(tree: Tree, dtype: str) -> None:
    scores = given()[0].astype(DTYPES[dtype])
    for call in (tree.package.softmax, partial(tree.package.entmax, alpha=1.25)):
        wide = tree.numpy(call(tree.array(scores.astype(np.float32))))
        got = tree.numpy(call(tree.array(scores)))
        assert got.dtype == DTYPES[dtype]
        assert same(got, wide.astype(DTYPES[dtype]))


@pytest.mark.parametrize("alpha", [1.25, 2])
def test_as_the_weights_of_attend(tree: Tree, alpha: float) -> None:
    """`softmax_fn=` takes them; NumPy's backward pass finds their rule by itself."""
    rng = np.random.default_rng(3)
    inputs: Any = {name: rng.normal(size=(2, 5, 2, 3)) for name in "qkv"}
    call, dy = partial(attn_np.entmax, alpha=alpha), rng.normal(size=(2, 5, 2, 3))
    carried: Any = {name: ErrArray(x, 0.0) for name, x in inputs.items()}
    with precision(precision_of("float64")):
        (context, _), pull = attn_np.value_and_vjp(attn_np.attend, **carried, causal=True, softmax_fn=call)
        want: Any = {f"d{name}": x for name, x in pull(ErrArray(dy, 0.0)).inputs.items()} | {"context": context}
    call = partial(tree.package.entmax, alpha=alpha)
    arrays = tree.arrays(inputs)
    if tree.name == "numpy":
        (y, _), pull = attn_np.value_and_vjp(attn_np.attend, **inputs, causal=True, softmax_fn=call)
        got = {f"d{name}": x for name, x in pull(dy).inputs.items()}
    elif tree.name == "torch":
        leaves = {name: x.requires_grad_() for name, x in arrays.items()}
        y, _ = tree.package.attend(**leaves, causal=True, softmax_fn=call)
        grads = torch.autograd.grad(y, list(leaves.values()), torch.from_numpy(dy))
        got = {f"d{name}": g.numpy() for name, g in zip(leaves, grads, strict=True)}
        y = y.detach()
    else:
        y, back = jax.vjp(lambda x: tree.package.attend(**x, causal=True, softmax_fn=call)[0], arrays)
        got = {f"d{name}": np.asarray(g) for name, g in back(tree.array(dy))[0].items()}
    for name, x in ({"context": tree.numpy(y)} | got).items():
        assert ratio(x, want[name]) <= 1, name


SCORES = np.zeros((3, 5, 7))
REFUSED: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "alpha below 1": ("entmax", {"alpha": 0.5}, ValueError, "expected alpha to be a finite number from 1, got 0.5"),
    "alpha no number": ("entmax", {"alpha": "2"}, ValueError, "expected alpha to be a finite number from 1, got '2'"),
    "no such axis": ("softmax", {"axis": 3}, ValueError, "expected axis to be one of the scores' 3 axes, got 3"),
    "mask of numbers": ("softmax", {"mask": SCORES}, TypeError, "expected a boolean mask (True = may attend), got flo"),
    "mask too large": ("softmax", {"mask": SCORES[None] > 0}, ValueError, "expected mask broadcastable to the scores'"),
    "mask that differs": ("entmax", {"mask": SCORES[:2] > 0}, ValueError, "expected mask broadcastable to the scores'"),
    "no floats": ("entmax", {"scores": SCORES > 0}, TypeError, "expected scores of a float dtype, got bool"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused(tree: Tree, case: str) -> None:
    name, changed, error, words = REFUSED[case]
    arrays = {n: tree.array(x) if isinstance(x, np.ndarray) else x for n, x in ({"scores": SCORES} | changed).items()}
    with pytest.raises(error) as caught:
        getattr(tree.package, name)(**arrays)
    assert str(caught.value).startswith(f"{name}: {words}")


def test_a_function_without_a_tape_is_not_traced(tree: Tree) -> None:
    with pytest.raises(
        TypeError, match="trace: expected a layer or a function with a tape, got softmax; it records not"
    ):
        tree.package.trace(tree.package.softmax, tree.array(SCORES))


BUGS = {
    "threshold of another sum": (".sum(-1)[..., None] >= 1.0", ".sum(-1)[..., None] >= 0.5"),
    "power of alpha - 1": ("0.0)) / (alpha - 1.0)), 0.0)", "0.0)) * (alpha - 1.0)), 0.0)"),
    "not scaled by alpha - 1": ("base = (alpha - 1.0) * (z - threshold)", "base = z - threshold"),
    "too few halvings": ('"float64": 60', '"float64": 20'),
    "axis forgotten": (".swapaxes(axis, -1), allowed, alpha)", ", allowed, alpha)"),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    scores, _, dy = given(axis=1)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        got = __import__(alias).entmax(tree.array(scores), alpha=1.25, axis=1)
    assert not ratio(tree.numpy(got), held(1.25, scores, None, dy, 1)["probs"]) <= 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("np.exp((2.0 - alpha) * np.log(", "np.exp((1.0 - alpha) * np.log("),
        ("    return slope * (dprobs - mean)", "    return slope * dprobs"),
    ],
)
def test_a_planted_bug_of_the_rule_is_seen(old: str, new: str) -> None:
    scores, _, dy = given()
    want = held(1.25, scores, None, dy, -1)["dscores"]
    with planted(Mutant("rule", SHARED, old, new, "", ""), "attn_np") as alias:
        package = __import__(alias)
        got = package.value_and_vjp(partial(package.entmax, alpha=1.25), scores)[1](dy).inputs["scores"]
    assert not ratio(got, want) <= 1


@pytest.mark.parametrize(("name", "alpha"), [("sparsemax", 2), ("entmax15", 1.5)])
def test_a_name_that_others_have_says_how_to_call_it(name: str, alpha: float) -> None:
    """As long as no layer has loaded the variant's module of that name."""
    getattr_, dir_ = lazy_namespace("attn_np", api=())
    assert name not in dir_()
    with pytest.raises(AttributeError, match=rf"call entmax\(scores, mask, alpha={alpha}\), or build\('{name}'\)"):
        getattr_(name)
