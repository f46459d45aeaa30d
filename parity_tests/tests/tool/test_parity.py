"""Do the three trees agree? Every variant and example, in four dtypes, judged by derived bounds."""

from dataclasses import replace
from importlib import import_module

import pytest

from attn_np import contract
from parity_tests.judge import candidates as found
from parity_tests.judge.candidates import Candidate, Outcome, accelerators, candidates, jax_function, run_numpy, untaped
from parity_tests.judge.cases import CALLS, Case, Drawn, cases, given
from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS, prepare
from parity_tests.judge.judging import judge, judge_call
from parity_tests.judge.kernels import TREES
from parity_tests.judge.runner import Plan, selected, work
from parity_tests.tests.everything import KINDS, WHOLE

# In JAX, whose compiling is most of the time, these are asked in 16-bit types.
IN_16_BITS = ("decoder", "linear", "longformer")

EXAMPLES = [(variant, example) for variant in contract.variants() for example in contract.examples(variant)]


def judged(case: Case, framework: str, mode: str, everything: bool) -> bool:
    """What the command judges with `--all`, or a part of it.

    NumPy and PyTorch are asked for every example in float64 and the full call, for the first of each variant in every
    type, and for that of one of each kind as by the command. JAX is asked for the first example of `mha`, and in
    float64 alone for that of one of each kind and of those that `test_decoding` does not compute step by step.
    """
    examples = contract.examples(case.variant)
    first, last = next(iter(examples)), list(examples)[-1]
    if everything or (case.variant == "mha" and case.example == first):
        return selected(case, framework, mode, True)
    if framework != "jax":
        whole = case.example == first and (case.call == "full" or case.variant in (*WHOLE, *KINDS))
        return whole or (case.call, case.dtype) == ("full", "float64")
    alone = case.variant in (*WHOLE, *KINDS) or not examples[first].cache_axes()
    types = DTYPES[2:] if case.variant in IN_16_BITS else ()
    wanted = (case.example == first and case.dtype == "float64" and alone) or (
        case.example == last and case.dtype in types
    )
    return mode == "jit" and case.call == "full" and wanted


def run_once(candidate: Candidate) -> Candidate:
    """A candidate whose run with a tape serves as the one without: half of what JAX compiles."""
    kept: dict[Case, Outcome] = {}

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        if case not in kept:
            kept[case] = candidate.run(case, drawn, True)
        return kept[case]

    return replace(candidate, run=run)


def failures(variant: str, example: str, framework: str, device: str, everything: bool) -> list[str]:
    prepare((framework,))
    found = []
    for case in cases([variant]):
        if case.example != example:
            continue
        for candidate in candidates(device, (framework,)):
            if judged(case, framework, candidate.mode, everything):
                if framework == "jax" and not (everything or variant == "mha"):
                    candidate = run_once(candidate)
                found += [str(row) for row in judge(case, candidate) if not row.ok]
    return found


def test_every_example_has_a_full_call() -> None:
    """Some types and candidates take no other, and a run by default takes that alone."""
    examples = {(variant, name) for variant in contract.variants() for name in contract.examples(variant)}
    assert {(case.variant, case.example) for case in cases() if case.call == "full"} == examples


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_agrees_with_the_reference(variant: str, example: str, framework: str, pytestconfig: pytest.Config) -> None:
    wrong = failures(variant, example, framework, "cpu", bool(pytestconfig.getoption("--everything")))
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_agrees_on_accelerators(variant: str, example: str, framework: str, pytestconfig: pytest.Config) -> None:
    if not accelerators(framework):
        pytest.skip(f"{framework} finds no accelerator on this machine")
    wrong = failures(variant, example, framework, "accelerator", bool(pytestconfig.getoption("--everything")))
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("variant", contract.variants())
def test_every_argument_is_given_somewhere(variant: str) -> None:
    """The full call gives every argument of the contract, the packed one documents too: none escapes the judge."""
    for example in contract.examples(variant):
        config = Case(variant, example, "full", "float64").config
        assert set(given(config, "packed")) == set(config.arguments())
        assert set(given(config, "full")) == set(config.arguments()) - {"documents"}
        assert all(set(given(config, call)) <= set(config.arguments()) for call in CALLS)


@pytest.mark.parametrize("variant", contract.variants())
def test_every_stage_is_judged(variant: str) -> None:
    """Each variant tapes its output, and its backward records the cotangent of what the forward tapes on the way."""
    example = next(iter(contract.examples(variant)))
    case = Case(variant, example, "full", "float64")
    (candidate,) = candidates("cpu", ("torch",))
    rows = list(judge(case, candidate))
    taped = {row.name for row in rows if row.stage == "tape"}
    assert "y" in taped
    assert {row.name for row in rows if row.stage == "cotangent"} >= {"dy"}
    params = {f"d{name}" for name in case.config.params()}
    for stage in ("gradient", "stage gradient"):
        assert params <= {row.name for row in rows if row.stage == stage}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_call_without_a_tape_is_judged(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `attend` does where nobody looks agrees, and a softcap that it forgets there is seen."""
    prepare((framework,))
    (call,) = untaped("cpu", (framework,))
    case = Case("fused_qkv", "capped", "full", "float64")
    rows = list(judge_call(case, call))
    assert all(row.ok for row in rows)
    assert {"y", "dquery", "dbias", "dw_qkv", "dw_o"} <= {row.name for row in rows}
    kernels = import_module(f"{TREES[framework]}.kernels.flash")
    attend = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda *given, **more: attend(*given, **more | {"softcap": None}))
    jax_function.cache_clear()
    assert not all(row.ok for row in judge_call(case, call))
    jax_function.cache_clear()


def test_a_run_that_is_not_whole_compiles_one_program_with_a_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves with the tape and without, and what it does not see of a fast path another one does."""
    asked = []

    def run_jax(case: Case, drawn: Drawn, taped: bool, **options: object) -> Outcome:
        asked.append((taped, options.get("quickly")))
        return run_numpy(case, drawn, taped)

    monkeypatch.setattr(found, "run_jax", run_jax)
    for variant, fast, dtype in (("mha", True, "float32"), ("gru", False, "float32"), ("gru", False, "float64")):
        case = Case(variant, next(iter(contract.examples(variant))), "full", dtype)
        (candidate,) = candidates("cpu", ("jax",), everything=False)
        assert candidate.name == "jax jit"
        assert all(row.ok for row in judge(case, candidate))
        assert asked == [(True, fast or dtype == "float64")] * 2
        asked.clear()
        plan = Plan((variant,), dtypes=(dtype,), frameworks=("jax",), calls=("full",))
        names = {row.candidate for row in work((plan, variant, case.example)).rows}
        assert names == ({"jax jit", "jax untaped"} if fast else {"jax jit"})
        assert asked[2:] == [(False, dtype == "float64")] * fast, "what users call in float32 is compiled for them"
        asked.clear()


def test_a_piece_leaves_nothing_compiled() -> None:
    """Every program of JAX takes some hundred mappings of memory, of which Linux gives a process 65,530."""
    jax = pytest.importorskip("jax")
    kept = jax.jit(lambda x: x + 1)
    kept(1.0)
    assert kept._cache_size() == 1
    plan = Plan(("dot_product",), dtypes=("float64",), frameworks=("jax",), calls=("plain",))
    work((plan, "dot_product", next(iter(contract.examples("dot_product")))))
    assert kept._cache_size() == 0
