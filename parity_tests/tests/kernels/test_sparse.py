"""Maps from scores to weights of which some, or all but one, are 0: in the three dialects, their rules and bounds."""

from fractions import Fraction
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np.normalizers import sparse as _sparse_weights
from attn_np.ops import vjp
from parity_tests.bounds.copies import adopt, disown
from parity_tests.bounds.error_array import ErrArray, plain
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.judging import compare
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import ratio

KINDS = {"usual": 1.0, "close": 2.0**-10, "far": 30.0, "equal": 0.0}
MAPS = ("sparsemax", "entmax15")


def given(kind: str, dtype: str = "float64", axis: int = -1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, who may be seen, and a gradient; one row sees nothing, one a single key."""
    rng = np.random.default_rng(len(kind))
    scores, allowed, dy = rng.normal(size=(3, 5, 7)), rng.random((3, 5, 7)) < 0.7, rng.normal(size=(3, 5, 7))
    allowed[1, 2], allowed[0, 1] = False, np.arange(7) == 4
    moved = (np.moveaxis(x, -1, axis) for x in (KINDS[kind] * scores, allowed, dy))
    scores, allowed, dy = (np.ascontiguousarray(x) for x in moved)
    return scores.astype(dtype), allowed, dy.astype(dtype)


def held(name: str, scores: np.ndarray, allowed: np.ndarray | None, dy: np.ndarray, axis: int) -> dict[str, Any]:
    """Weights and gradient with bounds; sparsemax's rule goes on from the weights found: the support is a decision."""
    weigh, rule = getattr(_sparse_weights, name), getattr(vjp, f"{name}_vjp")
    with precision(precision_of(scores.dtype.name)):
        probs = weigh(ErrArray(scores, 0.0), allowed, axis)
        found = ErrArray(probs.v, 0.0) if name == "sparsemax" else probs
        return {"probs": probs, "dscores": rule(found, ErrArray(dy, 0.0), axis)}


def results(name: str, tree: Tree, scores: np.ndarray, allowed: np.ndarray | None, dy: np.ndarray, axis: int) -> Arrays:
    sparse, seen = (
        import_module(f"{tree.package.__name__}.normalizers.sparse"),
        None if allowed is None else tree.array(allowed),
    )
    weigh = getattr(sparse, name)
    if tree.name == "numpy":
        probs = weigh(scores, allowed, axis)
        grad = getattr(vjp, f"{name}_vjp")(probs, dy, axis)
    elif tree.name == "torch":
        leaf = torch.from_numpy(scores).requires_grad_()
        probs = weigh(leaf, seen, axis)
        (grad,) = torch.autograd.grad(probs, leaf, torch.from_numpy(dy))
    else:
        probs, pull = jax.vjp(lambda x: weigh(x, seen, axis), tree.array(scores))
        (grad,) = pull(tree.array(dy))
    return {"probs": tree.numpy(probs), "dscores": tree.numpy(grad)}


@pytest.fixture(params=MAPS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_and_gradients_stay_within_their_bounds(name: str, tree: Tree, dtype: str, axis: int) -> None:
    for kind in KINDS:
        scores, allowed, dy = given(kind, dtype, axis)
        for seen in (allowed, None):
            want = held(name, scores, seen, dy, axis)
            for array, got in results(name, tree, scores, seen, dy, axis).items():
                assert got.dtype == dtype, (kind, array)
                assert compare(got.astype(np.float64), want[array])["ratio"] <= 1, (kind, array)
                assert seen is None or not np.any(got[~seen]), (kind, array)


def nearest(row: list[float]) -> list[float]:
    """The simplex's point nearest to a row, by the smallest support that fits: the conditions for an optimum."""
    for k in range(1, len(row) + 1):
        best = sorted(range(len(row)), key=lambda i: -row[i])[:k]
        tau = (sum(row[i] for i in best) - 1) / k
        if all(row[i] > tau if i in best else row[i] <= tau for i in range(len(row))):
            return [max(x - tau, 0.0) for x in row]
    raise ValueError("no support fits")


def roots(row: list[float]) -> list[float]:
    """1.5-entmax by the threshold that makes the weights add up to 1, in exact fractions halved a hundred times."""
    z = [Fraction(x) / 2 for x in row]
    low, high = max(z) - 1, max(z)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, Fraction(0)) ** 2 for x in z) >= 1 else (low, middle)
    return [float(max(x - low, Fraction(0)) ** 2) for x in z]


LOOPS = {"sparsemax": nearest, "entmax15": roots}


def test_scalar_loops(name: str) -> None:
    for kind in KINDS:
        scores, allowed, dy = given(kind)
        want = held(name, scores, allowed, dy, -1)["probs"]
        found = np.zeros(scores.shape)
        for index in np.ndindex(scores.shape[:-1]):
            seen = np.flatnonzero(allowed[index])
            if seen.size:
                found[index][seen] = LOOPS[name](scores[index][seen].tolist())
        assert ratio(found, want) <= 1, kind


KNOWN = {
    "sparsemax": [
        ([3.0, 0.0, -1.0], [1.0, 0.0, 0.0]),
        ([2.0, 2.0, -5.0], [0.5, 0.5, 0.0]),
        ([0.5, 0.0, -4.0], [0.75, 0.25, 0.0]),
        ([1024.5, 1024.0, 1000.0], [0.75, 0.25, 0.0]),
    ],
    "entmax15": [
        ([3.0, 0.0, -1.0], [1.0, 0.0, 0.0]),
        ([2.0, 0.0, -1.0], [1.0, 0.0, 0.0]),
        ([0.4, 0.0, -4.0], [0.64, 0.36, 0.0]),
        ([1024.0, 1024.0, 1024.0], [1 / 3, 1 / 3, 1 / 3]),
    ],
}


def test_known_weights(name: str, tree: Tree) -> None:
    """Far apart: all to the largest. Equal: shared. A gap of 1/2 or 2/5: weights of 3/4 and 1/4, of 0.8^2 and 0.6^2."""
    rows, known = (np.array(x) for x in zip(*KNOWN[name], strict=True))
    rows = np.concatenate([rows, np.full((4, 4), -9.0)], -1)
    scores = np.resize(rows, (3, 5, 7))  # of a shape that is compiled already
    want, got = held(name, scores, None, scores, -1)["probs"], results(name, tree, scores, None, scores, -1)["probs"]
    assert ratio(got, want) <= 1
    assert ratio(np.resize(np.concatenate([known, np.zeros((4, 4))], -1), (3, 5, 7)), want) <= 1


def test_a_score_at_the_threshold_gets_no_gradient(name: str, tree: Tree) -> None:
    """Numbers of few bits lie there exactly; it is beside the support, in every tree."""
    scores = np.resize([2.0 if name == "entmax15" else 1.0, 0.0, -9.0, -9.0, -9.0, -9.0, -9.0], (3, 5, 7))
    _, _, dy = given("usual")
    found = results(name, tree, scores, None, dy, -1)
    assert np.array_equal(found["probs"], np.resize(np.arange(7) == 0, (3, 5, 7)))
    assert not found["dscores"].any()


@pytest.mark.parametrize("low", [0.0, -1.0, -1.99])
def test_long_rows_lose_no_digits(tree: Tree, low: float) -> None:
    """Thousands share: the sums over the sorted scores alone would leave few of float32's digits."""
    n, p = 2**12, precision_of("float32")
    scores = np.where(np.arange(n) == 0, 0.0, low).astype(np.float32)
    got = tree.numpy(import_module(f"{tree.package.__name__}.normalizers.sparse").entmax15(tree.array(scores))).astype(
        np.float64
    )
    x, k = scores.astype(np.float64) / 2, np.arange(n) + 1.0
    exact = plain(_sparse_weights.entmax15)(2 * x)
    root, mean = np.sqrt(exact), np.cumsum(x) / k
    # Errors of the mean, of the deviations from it and of their squares; sum of the roots times that of tau.
    apart = p.gamma(n + 8) * (1 + 2 * np.sum(np.abs(x - mean) * np.abs(mean) * k / np.maximum(k - 1, 1)))
    off = p.gamma(n) * abs(mean[-1]) + apart / np.sum(root) + 4 * p.u
    assert np.all(np.abs(got - exact) <= 2 * root * off + off * off + 2 * p.u * exact)
    assert off < np.min(root)


@pytest.mark.parametrize("low", [-0.5, -0.999])
def test_long_rows_share_what_there_is(tree: Tree, low: float) -> None:
    """Thousands of equal scores below the largest: tau alone is rounded at 1, far above what each of them weighs."""
    n, p = 2**12, precision_of("float32")
    scores = np.where(np.arange(n) == 0, 0.0, low).astype(np.float32)
    got = tree.numpy(import_module(f"{tree.package.__name__}.normalizers.sparse").sparsemax(tree.array(scores))).astype(
        np.float64
    )
    share = (1.0 + float(scores[1])) / n  # of the largest n - 1 other scores take so much each
    # The sum of the weights errs by the roundings of a sum of positive numbers; each weight by its share of that.
    assert np.all(np.abs(got[1:] - share) <= 2 * (p.gamma(n) / n + p.u * share))
    assert abs(np.sum(got) - 1) <= 2 * p.gamma(n)


def test_hidden_scores_may_hold_anything(name: str, tree: Tree) -> None:
    """NaN and infinities that nobody sees change no weight and no gradient; what is all -inf and seen gives NaN."""
    scores, allowed, dy = given("usual")
    want = results(name, tree, scores, allowed, dy, -1)
    for value in (np.nan, np.inf, -np.inf):
        got = results(name, tree, np.where(allowed, scores, value), allowed, dy, -1)
        assert all(np.array_equal(got[array], x) for array, x in want.items())
    scores[0, 0] = -np.inf
    assert np.isnan(results(name, tree, scores, None, dy, -1)["probs"][0, 0]).all()
    assert not np.isnan(results(name, tree, scores, allowed & (np.arange(3) > 0)[:, None, None], dy, -1)["probs"]).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_are_no_numbers_spoil_their_row_alone(name: str, tree: Tree) -> None:
    """NaN and inf in sight give NaN in their row, as in a softmax."""
    scores, allowed, dy = given("usual")
    allowed[0, 0] = True
    want = results(name, tree, scores, allowed, dy, -1)["probs"]
    for value in (np.nan, np.inf):
        scores[0, 0, 3] = value
        got = results(name, tree, scores, allowed, dy, -1)["probs"]
        assert np.isnan(got[0, 0]).all()
        assert np.array_equal(got[1:], want[1:])
        assert np.array_equal(got[0, 1:], want[0, 1:])


# Hardmax --------------------------------------------------------------------------------------------------------------


def test_one_of_every_row_is_chosen(tree: Tree) -> None:
    """The largest in sight, the first of equals, in every tree to the bit; rows that see nothing have none."""
    sparse = import_module(f"{tree.package.__name__}.normalizers.sparse")
    for kind in KINDS:
        scores, allowed, _ = given(kind)
        for seen in (allowed, None):
            got = tree.numpy(sparse.hardmax(tree.array(scores), None if seen is None else tree.array(seen)))
            for index in np.ndindex(scores.shape[:-1]):
                there = range(7) if seen is None else np.flatnonzero(seen[index]).tolist()
                best = [i for i in there if all(scores[index][i] >= scores[index][j] for j in there)]
                assert np.flatnonzero(got[index]).tolist() == best[:1], kind
            assert set(np.unique(got).tolist()) <= {0.0, 1.0}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_row_is_chosen_from_without_numbers(tree: Tree) -> None:
    sparse = import_module(f"{tree.package.__name__}.normalizers.sparse")
    scores, allowed, _ = given("usual")
    allowed[0, 0] = np.arange(7) > 2
    want = _sparse_weights.hardmax(scores, allowed)
    for value in (np.nan, np.inf):
        got = tree.numpy(sparse.hardmax(tree.array(np.where(allowed, scores, value)), tree.array(allowed)))
        assert np.array_equal(got, want)
        scores[0, 0, 3] = value
        got = tree.numpy(sparse.hardmax(tree.array(scores), tree.array(allowed)))
        assert np.isnan(got[0, 0]).all()
        assert np.array_equal(got[0, 1:], want[0, 1:])
        scores[0, 0, 3] = 0.0


def test_the_value_of_one_with_the_gradient_of_another(tree: Tree) -> None:
    """Exactly: soft weights that go in and out again leave the hard ones untouched."""
    sparse = import_module(f"{tree.package.__name__}.normalizers.sparse")
    hard, soft, dy = given("far")
    hard = np.round(hard)
    assert np.array_equal(tree.numpy(sparse.straight_through(tree.array(hard), tree.array(soft / 3))), hard)
    if tree.name == "torch":
        leaf = torch.from_numpy(dy).requires_grad_()
        torch.sum(sparse.straight_through(torch.from_numpy(hard), leaf * 3) * torch.from_numpy(dy)).backward()
        assert leaf.grad is not None
        assert np.array_equal(leaf.grad.numpy(), 3 * dy)
    elif tree.name == "jax":
        _, pull = jax.vjp(lambda x: sparse.straight_through(hard, 3 * x), tree.array(dy))
        assert np.array_equal(np.asarray(pull(tree.array(dy))[0]), 3 * dy)


@pytest.mark.parametrize(
    ("row", "bounds", "open_"),
    [
        ([1.0, 3.0, 2.0], 0.25, []),
        ([1.0, 3.0, 2.0], 0.5, []),
        ([2.0, 1.0, 3.0], 0.5, [0, 2]),
        ([2.0, 2.0, 2.0], 0.0, []),
        ([2.0, 2.0, -2.0], 0.125, [0, 1]),
        ([1.0, 3.0, 2.75], [0.0, 0.0, 0.5], [1, 2]),
        ([1.0, 3.0, 2.75], [0.0, 0.0, 0.25], []),
    ],
)
def test_where_the_bounds_leave_the_choice_open_both_may_be_chosen(row: Any, bounds: Any, open_: list[int]) -> None:
    """An earlier score must be passed by, a later one only reached: at equality there is one winner, the first."""
    found = _sparse_weights.hardmax(ErrArray(row, bounds))
    assert found.v.tolist() == [float(i == int(np.argmax(row))) for i in range(3)]
    assert found.b.tolist() == [float(i in open_) for i in range(3)]
    assert not _sparse_weights.hardmax(ErrArray(row, bounds), np.arange(3) == 1).b.any()


BUGS = {  # the map, the function with the mistake, and what it is
    "1 left out": ("sparsemax", "sparsemax", "(row_sum(above) - 1.0)", "row_sum(above)"),
    "a support of one": ("sparsemax", "sparsemax", "support = support_of(fixed, 1)", "support = fixed == 0.0"),
    "hidden scores counted": ("sparsemax", "masked_rows", 'where(allowed, z, float("-inf"))', "maximum(z, -9.0)"),
    "not halved": ("entmax15", "entmax15", "(z - top) / 2.0", "(z - top) / 1.0"),
    "not squared": ("entmax15", "entmax15", "root * root).swapaxes", "root).swapaxes"),
    "the mean for the root": ("entmax15", "entmax15", "tau = mean - sqrt(", "tau = mean - 0.0 * sqrt("),
    "hidden roots counted": ("entmax15", "masked_rows", 'where(allowed, z, float("-inf"))', "maximum(z, -9.0)"),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    name, beside, old, new = BUGS[bug]
    scores, allowed, dy = given("usual")
    counted = bug.startswith("hidden")
    allowed &= np.arange(7) < 3 if counted else True
    scores -= 20.0 * counted
    with planted(Mutant(bug, SHARED, old, new, "", "", beside=f"def {beside}("), package) as alias:
        got = getattr(import_module(f"{alias}.normalizers.sparse"), name)(tree.array(scores), tree.array(allowed))
    assert not ratio(tree.numpy(got), held(name, scores, allowed, dy, -1)["probs"]) <= 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("sparsemax", "return np.where(support, dprobs - mean, 0.0)", "return np.where(support, dprobs, 0.0)"),
        ("sparsemax", "np.sum(np.where(support, dprobs, 0.0), axis", "np.sum(dprobs, axis"),
        ("sparsemax", "return np.where(support, dprobs - mean, 0.0)", "return dprobs - mean"),
        ("entmax15", "root = np.sqrt(probs)", "root = probs"),
        ("entmax15", " / np.where(root_sum == 0, 1.0, root_sum)\n", "\n"),
    ],
)
def test_a_planted_bug_of_the_rule_is_seen(name: str, old: str, new: str) -> None:
    scores, allowed, dy = given("usual")
    want, probs = held(name, scores, allowed, dy, -1), getattr(_sparse_weights, name)(scores, allowed)
    with planted(Mutant("rule", SHARED, old, new, "", ""), "attn_np") as alias:
        adopt(alias)
        got = getattr(import_module(f"{alias}.ops.vjp"), f"{name}_vjp")(probs, dy)
        disown(alias)
    assert ratio(got, want["dscores"]) > 1
