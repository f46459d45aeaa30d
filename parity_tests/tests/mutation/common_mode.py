"""Common mode: a bug in all three trees at once, the reference included, so that comparing them shows nothing.

What is left to see it knows no reference: the witness of the variant, which computes the formula one number at a time,
and relations that any attention keeps. Bounds come from the copy of the reference, bug and all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from parity_tests.bounds.copies import adopt, disown
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.calls import Call, Subject
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.relations import RELATIONS, apart, ratios
from parity_tests.mistakes.evidence import louder, shared_heads
from parity_tests.mistakes.plant import TREES, Mutant, planted

Arrays = dict[str, np.ndarray]


@contextmanager
def reference_with(mutant: Mutant) -> Iterator[Subject]:
    """The reference with the bug in it, able to derive bounds.

    Where a bug stands in all three trees, each twin does what this copy does, so it speaks for all of them.
    """
    with planted(mutant, "attn_np") as alias:
        import_module(f"{alias}.attention.attend" if mutant.variant == "attend" else f"{alias}.{mutant.variant}")
        adopt(alias)
        try:
            yield Subject("attn_np", alias, alias)
        finally:
            disown(alias)


def oracle_free(mutant: Mutant, thorough: bool = False) -> list[str]:
    """What shows the bug when no reference is whole, in words; with `thorough` all of it, else the first of each kind.

    A bug of the backward pass by hand exists in one tree only: automatic differentiation of the others shows it, and
    there is no common mode to ask about.
    """
    if mutant.trees != TREES:
        raise ValueError(f"mutants: expected a bug that all trees can have, got {mutant.name!r}; it stands in one only")
    with reference_with(mutant) as subject:
        if mutant.variant == "attend":
            return shared_heads_seen(subject)
        call = call_of(mutant)
        found = [f"witness: {what}" for what in [against_witness(mutant, subject, call)] if what]
        for name in RELATIONS:
            wrong = attempt(mutant, lambda name=name: ratios(name, subject, call))
            if any(not r <= 1 for r in wrong.values()):
                found.append(f"{name}: " + ", ".join(f"{what} {r:.3g}" for what, r in wrong.items() if not r <= 1))
                if not thorough:
                    break
        return found


def call_of(mutant: Mutant) -> Call:
    """The call that must reveal the bug, in float64."""
    case = mutant.case.at("float64")
    drawn = louder(draw(case_to_draw(case)), mutant.gain)
    return Call(case.config, drawn.inputs, drawn.params)


def case_to_draw(case: Case) -> Case:
    """Decoding begins from what a plain call is given."""
    return Case(case.variant, case.example, "plain", case.dtype) if case.call in ("greedy", "generate") else case


def attempt(mutant: Mutant, ask: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The answer; nothing where the bug raises, unless that is how it shows itself."""
    try:
        with np.errstate(all="ignore"):
            return ask()
    except Exception:
        return {"it raises": np.inf} if "attn_np" in mutant.raises else {}


def against_witness(mutant: Mutant, subject: Subject, call: Call) -> str:
    """Where the outputs leave their bounds around the witness, in words."""
    if mutant.gain != 1:  # the witness subtracts no maximum: exp overflows there too
        return ""
    want = witnessed(case_to_draw(mutant.case.at("float64")))

    def ask() -> dict[str, float]:
        found = subject.bounded(call)
        return {name: apart(found[name], x) for name, x in want.items()}

    wrong = {name: r for name, r in attempt(mutant, ask).items() if not r <= 1}
    return ", ".join(f"{name} {r:.3g}" for name, r in wrong.items())


@cache
def witnessed(case: Case) -> Arrays:
    """What the witness of a variant says of a case."""
    drawn = draw(case)
    return tests_of(case.variant).witness(case.config, drawn.inputs, drawn.params)


def tests_of(name: str, room: str = "variants") -> Any:
    """A test module, such as that of a variant."""
    return import_module(f"parity_tests.tests.{room}.test_{name}")


def shared_heads_seen(subject: Subject) -> list[str]:
    """`attend` with shared heads against its scalar loops, and against heads that were repeated by hand."""
    inputs, found = shared_heads(), []
    got, want = attended(subject, inputs), tests_of("attend", "kernels").loops(inputs, {"rate": 0.25})
    wrong = [f"{r:.3g}" for x, y in zip(got, want, strict=True) if not (r := apart(x, y)) <= 1]
    found += [f"witness: {', '.join(wrong)}"] if wrong else []
    repeated = attended(subject, inputs | {name: np.repeat(inputs[name], 2, axis=2) for name in "kv"})
    wrong = [f"{r:.3g}" for x, y in zip(got, repeated, strict=True) if not (r := apart(x, y)) <= 1]
    return found + ([f"shared_heads_are_repeated_heads: {', '.join(wrong)}"] if wrong else [])


def attended(subject: Subject, inputs: Arrays) -> tuple[ErrArray, ...]:
    """Context and weights with their bounds."""
    exact = {name: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(all="ignore"):
        return import_module(f"{subject.name}.attention.attend").attend(**exact, rate=0.25)
