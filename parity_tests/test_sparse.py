"""Maps from scores to the simplex that may give weights of 0, in the three dialects, with their rules and bounds."""

from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np import _core, _vjp
from parity_tests._inputs import TREES, Arrays, Tree
from parity_tests._witness import ratio
from parity_tests.error_arrays import ErrArray, adopt, disown, precision, precision_of
from parity_tests.judge import compare
from parity_tests.mutants import Mutant, planted

KINDS = {"usual": 1.0, "close": 2.0**-10, "far": 30.0, "equal": 0.0}


@pytest.fixture(params=list(TREES))
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


def given(kind: str, dtype: str = "float64", axis: int = -1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, who may be seen, and a gradient; one row sees nothing, one a single key."""
    rng = np.random.default_rng(len(kind))
    scores, allowed, dy = rng.normal(size=(3, 5, 7)), rng.random((3, 5, 7)) < 0.7, rng.normal(size=(3, 5, 7))
    allowed[1, 2], allowed[0, 1] = False, np.arange(7) == 4
    moved = (np.moveaxis(x, -1, axis) for x in (KINDS[kind] * scores, allowed, dy))
    scores, allowed, dy = (np.ascontiguousarray(x) for x in moved)
    return scores.astype(dtype), allowed, dy.astype(dtype)


def held(scores: np.ndarray, allowed: np.ndarray | None, dy: np.ndarray, axis: int, vjp: Any = _vjp) -> dict[str, Any]:
    """Weights and gradient with bounds; as the judge does, the rule goes on from the weights that were found."""
    with precision(precision_of(scores.dtype.name)):
        probs = _core.sparsemax(ErrArray(scores, 0.0), allowed, axis)
        return {"probs": probs, "dscores": vjp.sparsemax_vjp(ErrArray(probs.v, 0.0), ErrArray(dy, 0.0), axis)}


def results(tree: Tree, scores: np.ndarray, allowed: np.ndarray | None, dy: np.ndarray, axis: int) -> Arrays:
    core, seen = import_module(f"{tree.package.__name__}._core"), None if allowed is None else tree.array(allowed)
    if tree.name == "numpy":
        probs = core.sparsemax(scores, allowed, axis)
        grad = _vjp.sparsemax_vjp(probs, dy, axis)
    elif tree.name == "torch":
        leaf = torch.from_numpy(scores).requires_grad_()
        probs = core.sparsemax(leaf, seen, axis)
        (grad,) = torch.autograd.grad(probs, leaf, torch.from_numpy(dy))
    else:
        probs, pull = jax.vjp(lambda x: core.sparsemax(x, seen, axis), tree.array(scores))
        (grad,) = pull(tree.array(dy))
    return {"probs": tree.numpy(probs), "dscores": tree.numpy(grad)}


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_and_gradients_stay_within_their_bounds(tree: Tree, dtype: str, axis: int) -> None:
    for kind in KINDS:
        scores, allowed, dy = given(kind, dtype, axis)
        for seen in (allowed, None):
            want = held(scores, seen, dy, axis)
            for name, got in results(tree, scores, seen, dy, axis).items():
                assert got.dtype == dtype, (kind, name)
                assert compare(got.astype(np.float64), want[name])["ratio"] <= 1, (kind, name)
                assert seen is None or not np.any(got[~seen]), (kind, name)


def nearest(row: list[float]) -> list[float]:
    """The simplex's point nearest to a row, by the smallest support that fits: the conditions for an optimum."""
    for k in range(1, len(row) + 1):
        best = sorted(range(len(row)), key=lambda i: -row[i])[:k]
        tau = (sum(row[i] for i in best) - 1) / k
        if all(row[i] > tau if i in best else row[i] <= tau for i in range(len(row))):
            return [max(x - tau, 0.0) for x in row]
    raise ValueError("no support fits")


def test_scalar_loops() -> None:
    for kind in KINDS:
        scores, allowed, dy = given(kind)
        want = held(scores, allowed, dy, -1)["probs"]
        found = np.zeros(scores.shape)
        for index in np.ndindex(scores.shape[:-1]):
            seen = np.flatnonzero(allowed[index])
            if seen.size:
                found[index][seen] = nearest(scores[index][seen].tolist())
        assert ratio(found, want) <= 1, kind


def test_known_weights(tree: Tree) -> None:
    """Far apart: all to the largest. Equal: shared. A gap of 0.5: 3/4 and 1/4. Shifted: the same."""
    rows = np.array([[3.0, 0.0, -1.0], [2.0, 2.0, -5.0], [0.5, 0.0, -4.0], [1024.5, 1024.0, 1000.0]])
    known = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.75, 0.25, 0.0], [0.75, 0.25, 0.0]]
    assert results(tree, rows, None, rows, -1)["probs"].tolist() == known


def test_hidden_scores_may_hold_anything(tree: Tree) -> None:
    """NaN and infinities that nobody sees change no weight and no gradient; what is all -inf and seen gives NaN."""
    scores, allowed, dy = given("usual")
    want = results(tree, scores, allowed, dy, -1)
    for value in (np.nan, np.inf, -np.inf):
        got = results(tree, np.where(allowed, scores, value), allowed, dy, -1)
        assert all(np.array_equal(got[name], x) for name, x in want.items())
    scores[0, 0] = -np.inf
    assert np.isnan(results(tree, scores, None, dy, -1)["probs"][0, 0]).all()
    assert not np.isnan(results(tree, scores, allowed & (np.arange(3) > 0)[:, None, None], dy, -1)["probs"]).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_are_no_numbers_spoil_their_row_alone(tree: Tree) -> None:
    """NaN and inf in sight give NaN in their row, as in a softmax."""
    scores, allowed, dy = given("usual")
    allowed[0, 0] = True
    want = results(tree, scores, allowed, dy, -1)["probs"]
    for value in (np.nan, np.inf):
        scores[0, 0, 3] = value
        got = results(tree, scores, allowed, dy, -1)["probs"]
        assert np.isnan(got[0, 0]).all()
        assert np.array_equal(got[1:], want[1:])
        assert np.array_equal(got[0, 1:], want[0, 1:])


BUGS = {
    "1 left out": ("_core.py", "axis) - 1.0) / ranks", "axis)) / ranks"),
    "ranks from 0": ("_core.py", "zeros((n,), z) + 1.0, 0)", "zeros((n,), z) + 2.0, 0)"),
    "hidden scores counted": ("_core.py", "    z = z - ", "    z = maximum(z, -9.0) - "),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    file, old, new = BUGS[bug]
    scores, allowed, dy = given("usual")
    allowed &= np.arange(7) < 3 if bug == "hidden scores counted" else True
    scores -= 20.0 * (bug == "hidden scores counted")
    with planted(Mutant(bug, file, old, new, "", ""), package) as alias:
        got = import_module(f"{alias}._core").sparsemax(tree.array(scores), tree.array(allowed))
    assert not ratio(tree.numpy(got), held(scores, allowed, dy, -1)["probs"]) <= 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return np.where(support, dprobs - share, 0.0)", "return np.where(support, dprobs, 0.0)"),
        ("np.sum(np.where(support, dprobs, 0.0), axis", "np.sum(dprobs, axis"),
        ("return np.where(support, dprobs - share, 0.0)", "return dprobs - share"),
    ],
)
def test_a_planted_bug_of_the_rule_is_seen(old: str, new: str) -> None:
    scores, allowed, dy = given("usual")
    want, probs = held(scores, allowed, dy, -1), _core.sparsemax(scores, allowed)
    with planted(Mutant("rule", "_vjp.py", old, new, "", ""), "attn_np") as alias:
        adopt(alias)
        got = import_module(f"{alias}._vjp").sparsemax_vjp(probs, dy)
        disown(alias)
    assert ratio(got, want["dscores"]) > 1
