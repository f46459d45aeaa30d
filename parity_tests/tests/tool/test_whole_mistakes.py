"""Mistakes in whole models are found at the submodule that makes them; `whole_mistakes` has the list."""

import pytest

from parity_tests.tests.tool.whole_mistakes import MISTAKES, Mistake, compared, said


def test_the_list_covers_what_it_should() -> None:
    """Sixty, in every family and framework, with and without padding, of outputs and of gradients alone."""
    assert len(MISTAKES) == 60 and len({(m.name, m.kind) for m in MISTAKES}) == 60
    count = {kind: sum(m.kind == kind for m in MISTAKES) for kind in ("llama", "gpt2", "bert", "t5", "nnx", "linen")}
    assert min(count.values()) >= 4, count
    assert sum(m.gradient for m in MISTAKES) >= 15 and sum(m.padded for m in MISTAKES) >= 15
    assert any(m.gradient and m.padded for m in MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{m.kind}: {m.name}" for m in MISTAKES])
def test_a_mistake_is_found_at_its_submodule(mistake: Mistake) -> None:
    where, told = said(mistake)
    assert where == mistake.where, told
    assert told


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5", "nnx", "linen"])
def test_a_right_model_raises_no_alarm(kind: str, padded: bool) -> None:
    result = compared(None, kind, padded)
    assert result.agree and result.gradients, str(result)
    assert all(row.verdict == "agrees" for row in result.rows), str(result)
