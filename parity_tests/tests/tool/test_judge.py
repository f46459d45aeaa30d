"""Is the judge right? Its refusals, and the ways a comparison can go wrong; its rules are in `test_rules`."""

import sys
from collections.abc import Callable
from importlib import import_module
from traceback import extract_stack
from typing import Any

import numpy as np
import pytest
import torch

from attn_np import contract, ops
from attn_np.ops import vjp
from attn_torch.ops import softmax
from parity_tests.bounds.error_array import ErrArray, delivered, lift, widened
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.candidates import Candidate, Outcome, candidates, run_numpy
from parity_tests.judge.cases import CALLS, Case, Drawn, draw, given
from parity_tests.judge.judging import Anchor, compare, expected, judge, judge_ends, judge_tape, reference, scatter
from parity_tests.judge.runner import Plan
from parity_tests.mistakes import SHARED, Mutant, planted


def test_long_sums_of_equal_terms() -> None:
    """Equal summands round in one direction; a probabilistic bound breaks here, the worst case does not."""
    n = 4096
    x, w = np.full((1, n), 0.1, np.float32), np.full((n, 1), 0.3, np.float32)
    one_by_one = np.float32(0)
    for a, b in zip(x[0], w[:, 0], strict=True):
        one_by_one = np.float32(one_by_one + a * b)
    with precision(precision_of("float32")):
        result = ops.einsum("ab,bc->ac", ErrArray(x, 0.0), ErrArray(w, 0.0))
    assert abs(float(one_by_one) - result.v[0, 0]) <= result.b[0, 0]


def test_softmax_ignores_what_all_scores_share() -> None:
    """A common offset cancels: centred propagation keeps the product's bound at the spread of the values."""
    rng = np.random.default_rng(0)
    scores, values = rng.normal(size=(3, 8)), 1000.0 + rng.normal(size=(8, 2))
    bound = 2.0**-12
    with precision(precision_of("float64")):
        soft = ops.softmax(ErrArray(scores, bound))
        centred = ops.einsum("ab,bc->ac", soft, ErrArray(values, 0.0))
        plain = ops.einsum("ab,bc->ac", ErrArray(soft.v, soft.b), ErrArray(values, 0.0))
    assert np.all(16 * centred.b < plain.b)


def test_a_weight_may_underflow_where_its_exponential_does_not() -> None:
    """Automatic differentiation goes on from the exponential; who sees nothing still gets exactly 0."""
    scores = torch.tensor([[0.0, 0.0, -103.5], [-torch.inf] * 3], requires_grad=True)
    kept = softmax(scores, scores > -torch.inf)
    (got,) = torch.autograd.grad(kept, scores, torch.tensor([1.0, -2.0, 40.0]).expand(2, 3))
    assert kept[0, 2] == 0 < got[0, 2]
    with precision(precision_of("float32")):
        probs, dprobs = ErrArray(kept.detach().numpy(), 0.0), lift(np.array([[1.0, -2.0, 40.0]] * 2))
        whole = vjp.softmax_vjp(probs, dprobs)
        part = vjp.part_of_softmax_vjp(probs, dprobs, np.sum(probs * dprobs, axis=-1, keepdims=True), 2)
    for want in (whole, part):
        assert compare(got.numpy(), want)["ratio"] <= 1
        assert not want.b[1].any()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: np.asarray(x),
        lambda x: float(x[0, 0]),
        lambda x: bool(x[0, 0] > 0),
        lambda x: np.cumsum(x),
        lambda x: np.add(x, 1, out=np.zeros((2, 2))),
        lambda x: x.__setitem__((0, 0), 1.0),
        lambda x: np.linalg.norm(x),
    ],
    ids=["asarray", "float", "branch", "no-rule", "out", "assign", "norm"],
)
def test_what_would_drop_the_bound_is_refused(operation) -> None:
    with pytest.raises(TypeError):
        operation(ErrArray(np.ones((2, 2)), 0.0))


def test_constants_are_charged_their_rounding() -> None:
    with precision(precision_of("float32")):
        assert lift(0.1).b > 0
        assert lift(0.5).b == 0
        assert lift(3).b == 0


ROUNDING = ("exp", "log", "log1p", "tanh", "sqrt", "sigmoid", "softplus")


@pytest.mark.parametrize("variant", contract.variants())
def test_what_a_variant_makes_of_constants_is_charged_its_rounding(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No function that rounds gets an array without errors, such as a count of keys: it would count as exact."""
    seen: list[str] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Any, *more: Any) -> Any:
            places = [(frame.filename, frame.lineno) for frame in extract_stack()[:-1]]
            if isinstance(x, np.ndarray) and x.dtype.kind == "f" and not any("bounds" in name for name, _ in places):
                seen.append("{}:{}".format(*places[-1]))
            return function(x, *more)

        return call

    import_module(f"attn_np.{variant}")
    for name, module in list(sys.modules.items()):
        if name.startswith("attn_np.") and not name.startswith(("attn_np.contract", "attn_np.ops")):
            for word in set(ROUNDING) & vars(module).keys():
                monkeypatch.setattr(module, word, watched(getattr(module, word)))
    for example, config in contract.examples(variant).items():
        for call in [call for call in CALLS if given(config, call)]:
            case = Case(variant, example, call, "float32", 0)
            reference(case, draw(case), {}, precision_of("float32"))
    assert not seen


def test_beyond_the_range_there_is_no_bound_and_it_is_counted() -> None:
    with precision(precision_of("float32")):
        huge = ErrArray(np.array([1e30, 1.0]), 0.0) * np.array([1e30, 1.0])
    verdict = compare(np.array([np.inf, 1.0]), huge)
    assert verdict["ratio"] <= 1
    assert verdict["vacuous"] == 1
    assert delivered(ErrArray(np.array([7e4]), 0.0), "float16").b[0] == np.inf


WANT = ErrArray(np.array([1.0, -2.0, 0.0, np.nan]), np.array([0.5, 0.5, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("got", "passes"),
    [
        ([1.5, -2.5, 0.0, np.nan], True),
        ([1.6, -2.0, 0.0, np.nan], False),
        ([0.4, -2.0, 0.0, np.nan], False),
        ([1.0, -2.0, 0.0, 1.0], False),
        ([np.nan, -2.0, 0.0, np.nan], False),
        ([np.inf, -2.0, 0.0, np.nan], False),
        ([1.0, -2.0, 5e-324, np.nan], False),
        ([1.0, -2.0, 0.0], False),
    ],
    ids=["inside", "above", "below", "hides NaN", "NaN", "inf", "not zero", "shape"],
)
def test_compare(got: list[float], passes: bool) -> None:
    assert (compare(np.array(got), WANT)["ratio"] <= 1) == passes


def test_decisions_are_compared_exactly() -> None:
    mask = np.array([True, False])
    assert compare(mask, mask)["ratio"] == 0
    assert compare(~mask, mask)["ratio"] == np.inf


@pytest.fixture
def outcome():
    case = Case("mha", "cross", "full", "float32")
    (candidate,) = candidates("cpu", ("numpy",))
    return case, candidate.run(case, draw(case), True)


def verdicts(case: Case, outcome) -> list:
    p = precision_of(case.dtype)
    return [*judge_tape(case, "x", draw(case), outcome, p), *judge_ends(case, "x", outcome, *expected(case, p))]


@pytest.mark.parametrize("kind", ["zero", "negated", "transposed"])
@pytest.mark.parametrize("name", ["dw_q", "dquery", "dbias"])
def test_wrong_gradients_fail(outcome, name: str, kind: str) -> None:
    """Adaptive tolerances accept an all-zero gradient when the low-precision run is noisy; a bound does not."""
    case, found = outcome
    change = {"zero": np.zeros_like, "negated": np.negative, "transposed": lambda x: x.T.reshape(x.shape)}[kind]
    found.grads[name] = change(found.grads[name])
    assert any(not row.ok and row.name == name for row in verdicts(case, found))


def test_first_failing_stage_is_the_guilty_one(outcome) -> None:
    case, found = outcome
    found.tape["probs"] = found.tape["probs"] * (1 + 2.0**-10)
    wrong = [row.name for row in verdicts(case, found) if not row.ok]
    assert wrong[0] == "probs"
    assert "scores" not in wrong


# What a run may lack, have too much of, or have otherwise: by the part of it and an array there.
PARTS = {"tape": "probs", "cotangents": "dprobs", "outputs": "y", "grads": "dw_o"}
CHANGES = [(part, change) for part in PARTS for change in ("missing", "extra", "shape", "dtype")]
# A backward pass may record more than ours does.
NOT_HELD = {("cotangents", "extra"), ("tape", "dtype"), ("cotangents", "dtype")}  # results alone have dtypes


@pytest.mark.parametrize(("part", "change"), [one for one in CHANGES if one not in NOT_HELD])
def test_what_is_missing_or_too_much_or_otherwise_fails(outcome, part: str, change: str) -> None:
    """And nothing but that array fails."""
    case, found = outcome
    arrays, name = getattr(found, part), PARTS[part]
    if change == "missing":
        del arrays[name]
    elif change == "extra":
        name, arrays["invented"] = "invented", np.zeros(3)
        found.dtypes["invented"] = case.dtype
    elif change == "shape":
        arrays[name] = arrays[name][None]
    else:
        found.dtypes[name] = "float64"
    assert {row.name for row in verdicts(case, found) if not row.ok} == {name}


def test_untouched_outcome_passes(outcome) -> None:
    case, found = outcome
    assert all(row.ok for row in verdicts(case, found))


def test_anchor_lets_a_compiler_fuse_but_not_an_eager_run() -> None:
    p = precision_of("float32")
    got = np.array([1.0, 3.0])
    eager, fused = (Anchor({"a": got}, p, fused).tap("a", ErrArray(got, 0.0)) for fused in (False, True))
    assert not eager.b.any()
    assert np.all(fused.b >= p.u * got)


def under_jit(found: Outcome) -> Candidate:
    """A candidate under jit that computes what is given."""
    return Candidate("jax", "jit", "cpu", lambda case, drawn, taped: found)


@pytest.mark.parametrize("stage", ["scores", "probs", "context", "dprobs", "dscores", "dq"])
def test_a_mistake_of_a_compiled_candidate_is_not_excused(outcome, stage: str) -> None:
    """A compiler may compute a value twice, each time within its bound; a thousandth more is no rounding."""
    case, found = outcome
    taped = found.cotangents if stage in found.cotangents else found.tape
    taped[stage] = taped[stage] * (1 + 2.0**-10)
    assert next(row.name for row in judge(case, under_jit(found)) if not row.ok) == stage


def test_a_compiler_may_compute_a_value_twice() -> None:
    """Once for the tape and once where it is used: a loose anchor compares and goes on with a bound for both."""
    got, value = np.array([1.0, 2.0]), ErrArray([1.0, 2.0], np.array([1e-9, 1e-5]))
    loose = Anchor({"a": got + 1e-6}, precision_of("float32"), True, loose=True)
    assert loose.tap("a", value) is value
    assert loose.found["a"]["ratio"] == (got[0] + 1e-6 - got[0]) / 1e-9


@np.errstate(invalid="ignore")  # NumPy warns of signalling NaNs
def test_widening_is_exact() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    for kind in ("bfloat16", "float16"):
        x = bits.view(ops.DTYPES[kind])
        back = widened(x).astype(x.dtype)
        assert np.array_equal(np.isnan(back), np.isnan(x))
        assert np.array_equal(back[~np.isnan(x)].view(np.uint16), bits[~np.isnan(x)])


# Precisions -----------------------------------------------------------------------------------------------------------

# The factors of every product lose all but 11 bits, as on a GPU's TF32 units (Dekker's splitting).
TF32 = Mutant(
    "factors in TF32",
    SHARED,
    "    a = upcast(a).transpose([left",
    "    a, b = (x * 8193 - (x * 8193 - x) if x.dtype == np.float32 else x for x in (upcast(a), upcast(b)))\n"
    "    a = upcast(a).transpose([left",
    "mha",
    "cross",
    dtype="float32",
    trees=("attn_np",),
)


@pytest.mark.parametrize("variant", contract.variants())
def test_tf32_keeps_its_own_promise_and_no_other(variant: str) -> None:
    """A bound for TF32 holds what TF32 does, and the bound for full float32 products does not."""
    example = next(iter(contract.examples(variant)))
    case = Case(variant, example, "full", "float32")
    plan = Plan((variant,), products="tf32")
    with planted(TF32, "attn_np") as alias:
        found = Candidate("numpy", "by hand", "cpu", lambda c, d, taped: run_numpy(c, d, taped, tree=alias))
        asked = [row for row in judge(case, found, p=plan.precision("float32")) if not row.ok]
        full = [row for row in judge(case, found) if not row.ok]
    assert not asked, asked[0]
    assert full


def test_products_of_float64_stay_full() -> None:
    plan = Plan(("mha",), products="tf32")
    assert plan.precision("float64") == precision_of("float64")
    assert plan.precision("bfloat16").product == "tf32"


# Where bounds say little ----------------------------------------------------------------------------------------------


def compiled(change: Callable[[str, np.ndarray], np.ndarray]) -> Candidate:
    """NumPy's run as that of a compiled candidate, which nothing but the whole bound and random rounding holds."""

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        outcome = run_numpy(case, drawn, taped)
        if not taped:
            outcome.grads = {name: change(name, x) for name, x in outcome.grads.items()}
        return outcome

    return Candidate("numpy", "jit", "cpu", run)


def test_a_mistake_below_a_loose_bound_is_seen_by_random_rounding() -> None:
    """A gradient of seq2seq wrong by one in a thousand: within a bound that says little."""
    case = Case("seq2seq", "words", "full", "float32")
    name = first_loose(case)
    right = list(judge(case, compiled(lambda _, x: x)))
    assert all(row.ok for row in right)
    sampled = {row.name for row in right if row.stage == "sampled"}
    assert name in sampled and not any(row.vacuous for row in right if row.stage == "sampled")
    wrong = list(judge(case, compiled(lambda n, x: x * 1.001 if n == name else x)))
    failed = {(row.stage, row.name) for row in wrong if not row.ok}
    assert failed == {("sampled", name)}


def first_loose(case: Case) -> str:
    """The gradient that most numbers of are without a telling bound."""
    rows = [row for row in judge(case, compiled(lambda _, x: x)) if row.stage == "gradient"]
    return max(rows, key=lambda row: row.vacuous / max(row.elements, 1)).name


def test_random_rounding_is_about_as_large_as_rounding() -> None:
    """What float32 really does is neither beyond the random errors nor a thousandth of them."""
    case = Case("gru", "stacked", "full", "float32")
    drawn = draw(case)
    random = scatter(case, drawn, precision_of("float32"))
    outcome = run_numpy(case, drawn, False)
    for name, x in (outcome.outputs | outcome.grads).items():
        share = np.sqrt(np.mean(((x - random[name].v) / random[name].b) ** 2))
        assert 2.0**-10 < share < 1, name


def test_an_exact_array_that_differs_says_where() -> None:
    want = np.array([[True, True], [False, True]])
    assert compare(want, want)["ratio"] == 0
    found = compare(np.array([[True, True], [False, False]]), want)
    assert (found["ratio"], found["index"], found["got"], found["expected"]) == (np.inf, (1, 1), 0.0, 1.0)
    assert compare(want[:1], want)["note"] == "shape (1, 2), expected (2, 2)"
    assert compare(np.array([1, 3]), np.array([1, 2]))["index"] == (1,)
