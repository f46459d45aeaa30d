"""How well the judge names what is wrong: every known mistake is planted in a candidate whose trace it then reads."""

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from attn_np import contract
from parity_tests.bounds.error_arrays import precision_of
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.explain.verdicts import Judged
from parity_tests.judge.cases import CALLS, Case, draw
from parity_tests.judge.judging import Anchor, reference
from parity_tests.mistakes import MUTANTS, TREES, Mutant, outcome_of, planted
from parity_tests.mistakes.evidence import louder

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
    """Every mistake of the catalogue in every tree asked for that can hold it.

    What a trace of a layer's call cannot hold is left out: `attend` called by itself, decoding, and what raises.
    """
    trees = [PACKAGES[name] for name in frameworks]
    shown = [m for m in MUTANTS if m.fix and m.variant in contract.variants() and m.call in CALLS]
    return [(m, tree) for m in shown for tree in TREES if tree in trees and tree in m.trees and tree not in m.raises]


def measured(mutant: Mutant, tree: str, dtype: str = "float32", black_box: bool = False) -> Named:
    """Plant one mistake, run the candidate and ask the judge."""
    case = mutant.case if mutant.case.dtype != "float64" else mutant.case.at(dtype)
    finding, seconds = asked(mutant, tree, case, black_box)
    if finding is None and case.dtype != "float64":  # too small for this type: meaning is tested in float64
        case = case.at("float64")
        finding, more = asked(mutant, tree, case, black_box)
        seconds += more
    if finding is None:
        return Named(mutant.name, tree, "", False, False, [], False, False, seconds)
    # Some mistakes are one and the same to the numbers, such as two large fills: what counts is the advice.
    causes = [cause.name for cause in finding.causes]
    right_ones = [cause.name == mutant.name or cause.fix == mutant.fix for cause in finding.causes]
    first = f"{finding.first.stage} {finding.first.name}"
    right = black_box or finding.first.name in stages_of(mutant, tree, case)
    return Named(
        mutant.name, tree, first, True, right, causes, bool(causes) and right_ones[0], any(right_ones), seconds
    )


def asked(mutant: Mutant, tree: str, case: Case, black_box: bool) -> tuple[Finding | None, float]:
    drawn = louder(draw(case), mutant.gain)
    with planted(mutant, tree) as alias:
        outcome = outcome_of(tree, alias, case, True, drawn)
    if black_box:
        outcome = replace(outcome, tape={}, cotangents={})
    start = perf_counter()
    run = Judged(tree, case, drawn, outcome, precision_of(case.dtype), partial=black_box)
    return explain(run), perf_counter() - start


def stages_of(mutant: Mutant, tree: str, case: Case) -> set[str]:
    """The arrays whose computation the mistake stands in: those that differ although all before them are the same.

    Found without bounds: the tree with the mistake and the tree without it run on the same inputs, and the first array
    of the two tapes that is not bit for bit the same is where the mistake acts. Of arrays that one scan writes together
    it is the one that differs at the earliest step. A backward pass is compared in the same way.
    """
    drawn = louder(draw(case), mutant.gain)
    with planted(mutant, tree) as alias:
        bad = outcome_of(tree, alias, case, True, drawn)
    good = outcome_of(tree, tree, case, True, drawn)
    anchor = Anchor(good.tape | good.cotangents, precision_of(case.dtype), False)
    reference(case, drawn, anchor, precision_of(case.dtype))
    inputs = {f"d{name}" for name in case.config.arguments()}
    for kind in ("tape", "outputs", "cotangents", "grads"):
        a, b = getattr(good, kind), getattr(bad, kind)
        extra = [name for name in b if name not in a]
        if extra:
            return {extra[0]}
        order = {name: i for i, name in enumerate(anchor.values)}
        differ = [name for name in a if name not in b or a[name].tobytes() != b[name].tobytes()]
        differ.sort(key=lambda name: (order.get(name, len(order)), kind == "grads" and name in inputs))
        if differ:
            together = differ[:1] if differ[0] not in anchor.steps else scanned(differ, anchor)
            return {min(together, key=lambda name: first_step(a[name], b.get(name), kind == "cotangents"))}
    return set()


def scanned(names: list[str], anchor: Anchor) -> list[str]:
    """The names at the beginning that the same scan wrote."""
    prefix = names[0].rpartition(".")[0]
    return [name for name in names if name in anchor.steps and name.rpartition(".")[0] == prefix]


def first_step(a: np.ndarray, b: np.ndarray | None, backwards: bool) -> int:
    """The first position in time at which two arrays differ; a backward pass begins at the last."""
    if b is None or a.shape != b.shape or a.ndim < 2:
        return 0
    apart = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    steps = np.flatnonzero(apart.any(axis=tuple(i for i in range(a.ndim) if i != 1)))
    return 0 if not len(steps) else int(a.shape[1] - 1 - steps[-1] if backwards else steps[0])
