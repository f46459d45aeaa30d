"""How well the judge names what is wrong: every known mistake is planted in a candidate whose trace it then reads."""

from dataclasses import dataclass, replace
from time import perf_counter

from parity_tests.cases import Case, draw
from parity_tests.error_arrays import precision_of
from parity_tests.explain import Judged, explain
from parity_tests.findings import Finding
from parity_tests.mutants import MUTANTS, TREES, Mutant, outcome_of, planted

PACKAGES = {"numpy": "attn_np", "torch": "attn_torch", "jax": "attn_jax"}


@dataclass
class Named:
    """What the judge said of one planted mistake.

    Attributes:
        mistake, tree: what was planted, and where.
        first: the first array that differs, as "stage name"; "" where none did.
        seen: something differed.
        stage_right: the first difference is the array in whose computation the mistake was planted.
        causes: what was named, best first.
        named: the planted mistake stands first.
        among: it is one of those that fit.
        seconds: from the trace to the causes.
    """

    mistake: str
    tree: str
    first: str
    seen: bool
    stage_right: bool
    causes: list[str]
    named: bool
    among: bool
    seconds: float


def planted_cases(frameworks: tuple[str, ...]) -> list[tuple[Mutant, str]]:
    """Every mistake of the catalogue in every tree asked for that can hold it."""
    trees = [PACKAGES[name] for name in frameworks]
    return [(m, tree) for m in MUTANTS if m.fix for tree in TREES if tree in trees and tree in m.trees]


def measured(mutant: Mutant, tree: str, dtype: str = "float32", black_box: bool = False) -> Named:
    """Plant one mistake, run the candidate and ask the judge."""
    case = mutant.case if mutant.case.dtype != "float64" else mutant.case.at(dtype)
    finding, seconds = asked(mutant, tree, case, black_box)
    if finding is None and case.dtype != "float64":  # too small for this type: meaning is tested in float64
        finding, more = asked(mutant, tree, case.at("float64"), black_box)
        seconds += more
    if finding is None:
        return Named(mutant.name, tree, "", False, False, [], False, False, seconds)
    causes = [cause.name for cause in finding.causes]
    first = f"{finding.first.stage} {finding.first.name}"
    right = black_box or finding.first.name in stages_of(mutant, tree, case)
    named = bool(causes) and causes[0] == mutant.name
    return Named(mutant.name, tree, first, True, right, causes, named, mutant.name in causes, seconds)


def asked(mutant: Mutant, tree: str, case: Case, black_box: bool) -> tuple[Finding | None, float]:
    drawn = draw(case)
    with planted(mutant, tree) as alias:
        outcome = outcome_of(tree, alias, case, True)
    if black_box:
        outcome = replace(outcome, tape={}, cotangents={})
    start = perf_counter()
    run = Judged(tree, case, drawn, outcome, precision_of(case.dtype), partial=black_box)
    return explain(run), perf_counter() - start


def stages_of(mutant: Mutant, tree: str, case: Case) -> set[str]:
    """The arrays whose computation the mistake stands in: those that differ although all before them are the same.

    Found without bounds: the tree with the mistake and the tree without it run on the same inputs, and the first array
    of the two tapes that is not bit for bit the same is where the mistake acts. A backward pass is compared in the same
    way.
    """
    with planted(mutant, tree) as alias:
        bad = outcome_of(tree, alias, case, True)
    good = outcome_of(tree, tree, case, True)
    for kind in ("tape", "outputs", "cotangents", "grads"):
        a, b = getattr(good, kind), getattr(bad, kind)
        for name in a:
            if name not in b or a[name].tobytes() != b[name].tobytes():
                return {name}
    return set()
