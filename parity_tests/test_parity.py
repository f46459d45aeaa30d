"""Do the three trees agree? Every variant and example, in four dtypes, judged by derived bounds."""

import pytest

from attn_np import contract
from parity_tests.candidates import accelerators, candidates
from parity_tests.cases import CALLS, Case, cases, given
from parity_tests.judge import judge
from parity_tests.matrix import FRAMEWORKS, prepare, selected

EXAMPLES = [(variant, example) for variant in contract.variants() for example in contract.examples(variant)]


def judged(case: Case, framework: str, mode: str) -> bool:
    """What the command judges, and of JAX one call in float32 operation by operation."""
    if framework == "jax" and mode == "eager":
        first = next(iter(contract.examples(case.variant)))
        return (case.example, case.call, case.dtype) == (first, "full", "float32")
    return selected(case, framework, mode, False)


def failures(variant: str, example: str, framework: str, device: str) -> list[str]:
    prepare((framework,))
    found = []
    for case in cases([variant]):
        if case.example != example:
            continue
        for candidate in candidates(device, (framework,)):
            if judged(case, framework, candidate.mode):
                found += [str(row) for row in judge(case, candidate) if not row.ok]
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_agrees_with_the_reference(variant: str, example: str, framework: str) -> None:
    wrong = failures(variant, example, framework, "cpu")
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_agrees_on_accelerators(variant: str, example: str, framework: str) -> None:
    if not accelerators(framework):
        pytest.skip(f"{framework} finds no accelerator on this machine")
    wrong = failures(variant, example, framework, "accelerator")
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("variant", contract.variants())
def test_every_argument_is_given_somewhere(variant: str) -> None:
    """The full call gives every argument of the contract, so no argument escapes the judge."""
    for example in contract.examples(variant):
        config = Case(variant, example, "full", "float64").config
        assert set(given(config, "full")) == set(config.arguments())
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
