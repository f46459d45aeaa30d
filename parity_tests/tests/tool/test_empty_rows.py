"""Ports that fill hidden scores with a number: what is said of queries that see no key."""

from math import inf, sqrt
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests import ParityError, Verdict, assert_parity
from parity_tests.explain import causes
from parity_tests.explain.catalogue import Mistake
from parity_tests.explain.causes import explain
from parity_tests.explain.search import FILLED, Fit, told_by_fill
from parity_tests.mistakes import MUTANTS
from parity_tests.ports import differences, empty_rows
from parity_tests.tests.tool.test_library import LINEAR
from parity_tests.tests.tool.test_narrower_types import unsearched

SMALLEST = float(np.finfo(np.float32).min)
MHA: dict[str, Any] = {"d_model": 12, "num_heads": 3}


class Filled(torch.nn.Module):
    """Attention as most people write it: hidden scores are filled with a number."""

    def __init__(self, fill: float, causal: bool = False, scale: float = 0.5, added: bool = False) -> None:
        super().__init__()
        self.fill, self.causal, self.scale, self.added = fill, causal, scale, added
        self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, 3, 4).transpose(1, 2) for p in (self.q, self.k, self.v))
        seen = torch.ones(t, t, dtype=torch.bool)
        seen = seen.tril() if self.causal else seen
        seen = seen if mask is None else seen & mask
        scores = q @ k.mT * self.scale
        scores = scores + (1.0 - seen.to(x.dtype)) * self.fill if self.added else scores.masked_fill(~seen, self.fill)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


def judged(candidate: Any, **options: Any) -> Verdict:
    return assert_parity(candidate, "mha", **{**MHA, "weights": LINEAR, **options})


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of queries that see no key must need no search of causes."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("causes were searched")

    monkeypatch.setattr(causes, "Search", refused)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("fill", "words"), [(-1e9, "-1e9"), (-1e4, "-10000"), (SMALLEST, "the smallest float32"), (-65504.0, "-65504")]
)
@pytest.mark.usefixtures("no_search")
def test_a_fill_is_said_first_and_named(fill: float, words: str, added: bool, causal: bool) -> None:
    torch.manual_seed(0)
    port = Filled(fill, causal, added=added)
    with pytest.raises(ParityError) as caught:
        judged(port, causal=causal)
    first, *_ = str(caught.value).splitlines()
    assert "only queries that see no key differ" in first and "empty_rows=False" in first
    assert [cause.name for cause in caught.value.finding.causes] == [f"hidden scores filled with {words}"]
    assert judged(port, causal=causal, empty_rows=False).worst.ratio <= 1


@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("fill", [-1e9, -inf])
@pytest.mark.usefixtures("no_search")
def test_a_function_that_fills_is_told_so(framework: str, fill: float) -> None:
    """A number that cannot be seen, as NumPy's, is not named."""
    xp: Any = {"numpy": np, "jax": jnp, "torch": torch}[framework]

    def attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
        scores = xp.where(mask, query @ key.swapaxes(1, 2) / sqrt(query.shape[-1]), fill)
        e = xp.exp(scores - scores.max(-1, keepdims=True)[0 if framework == "torch" else ...])
        return e / e.sum(-1, keepdims=True) @ value

    with np.errstate(invalid="ignore"), pytest.raises(ParityError, match=r"^only queries that see no key") as caught:
        assert_parity(attention, "dot_product", framework=framework, calls=("full",))
    told = "a query that sees no key gets no weights of 0" if framework == "numpy" else "hidden scores filled with -1e9"
    assert [c.name for c in caught.value.finding.causes] == ["row without a key is NaN" if fill == -inf else told]


@pytest.mark.parametrize("fill", [-1e9, -inf])
def test_another_mistake_is_not_hidden_by_such_queries(fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is searched where every query sees a key; that the others differ, too, is a note."""
    searched: list[Any] = []

    def watched(run: Any, causes: bool = True, **options: Any) -> Any:
        searched.extend([run] if causes else [])
        return explain(run, causes=False, **options)

    monkeypatch.setattr(differences, "explain", watched)
    torch.manual_seed(0)
    with pytest.raises(ParityError) as caught:
        judged(Filled(fill, scale=0.4), calls=("full",))
    assert not str(caught.value).startswith("only queries")
    assert "queries that see no key differ, too" in str(caught.value)
    (run,) = searched
    assert run.drawn.inputs["mask"].any(-1).all()


def test_a_mistake_beside_a_key_that_nobody_sees_is_no_matter_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every query sees its own place, every key is seen, and this port agrees."""

    class Unseen(Filled):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            lost = mask is not None and bool((~mask.any(-2)).any())
            return super().forward(x, mask) * (1.5 if lost else 1.0)

    monkeypatch.setattr(differences, "explain", unsearched)
    torch.manual_seed(0)
    with pytest.raises(ParityError) as caught:
        judged(Unseen(-1e9), calls=("full",))
    assert not str(caught.value).startswith("only queries")


def test_a_dropout_is_no_matter_of_such_queries() -> None:
    class Dropping(Filled):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            y = super().forward(x, mask)
            return y if mask is None or mask.any(-1).all() else torch.nn.functional.dropout(y, 0.5)

    with pytest.raises(ParityError) as caught:
        judged(Dropping(-1e9), calls=("full",))
    assert [cause.name for cause in caught.value.finding.causes] == ["by chance"]


def test_a_search_names_no_number_of_several_that_fit() -> None:
    """A trace says nothing of the number: any large one hides a key alike."""
    setup: Any = None

    def fit(name: str, fix: str = empty_rows.SELECT) -> Fit:
        return Fit(Mistake(name, fix, lambda setup: setup), setup, 0.5, 0)

    fits = [
        fit("mask ignored", "another"),
        fit(f"{FILLED} -50"),
        fit("scale missing", "another"),
        fit(f"{FILLED} -1e9"),
    ]
    names = ["mask ignored", f"{FILLED} a finite number", "scale missing"]
    assert [each.mistake.name for each in told_by_fill(fits)] == names
    assert told_by_fill(fits[:3]) == fits[:3] and told_by_fill([]) == []


def test_what_stands_for_the_fill_is_the_mistake_of_the_catalogue() -> None:
    names = {mutant.name: mutant.fix for mutant in MUTANTS}
    assert names[empty_rows.described_fill(-1e9)] == empty_rows.SELECT
