"""One candidate's run, and the verdict on every array of it, against the reference as it is or with mistakes made."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from parity_tests.bounds.copies import adopt, disown
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import Precision
from parity_tests.judge.candidates import Outcome, extras, leaves, numpy_layer, pulled, scoped
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.consequences import consequences
from parity_tests.judge.judging import Anchor, Row, judge_ends, reference, tape_rows
from parity_tests.mistakes.plant import Copy, Mutant, with_bugs

FORWARD = ("tape", "output")
STAGES = ("tape", "output", "cotangent", "stage gradient", "gradient")


@dataclass(frozen=True)
class Setup:
    """What the reference computes.

    Attributes:
        case, drawn: the call.
        precision: that of its bounds.
        edits: of its source.
        constants: names of those that have another value than the config's.
        stopped: name of the array whose gradient goes no further; "" where all do.
    """

    case: Case
    drawn: Drawn
    precision: Precision
    edits: tuple[Mutant, ...] = ()
    constants: frozenset[str] = frozenset()
    stopped: str = ""


@dataclass(frozen=True)
class Judged:
    """One candidate's run with everything that is needed to judge it again.

    Attributes:
        who: name of the candidate.
        case, drawn: the call.
        outcome: what it computed.
        precision: what it promises.
        fused: a compiler may hand values on before their last rounding.
        partial: the candidate records what it likes and returns the gradients it has.
        explained: names of arrays whose difference has its cause already.
        stopped: as in `Setup`.
    """

    who: str
    case: Case
    drawn: Drawn
    outcome: Outcome
    precision: Precision
    fused: bool = False
    partial: bool = False
    explained: frozenset[str] = frozenset()
    stopped: str = ""

    @property
    def setup(self) -> Setup:
        """The reference without a mistake."""
        return Setup(self.case, self.drawn, self.precision)

    def against(self, setup: Setup) -> "Judged":
        """The same run, to be judged against the reference of another setup."""
        own = {"case": setup.case, "drawn": setup.drawn, "precision": setup.precision, "stopped": setup.stopped}
        return replace(self, **own)

    def results(self) -> dict[str, np.ndarray]:
        """Every array of the run by name."""
        return self.outcome.tape | self.outcome.cotangents | self.outcome.outputs | self.outcome.grads


class Stopping(Anchor):
    """An anchor whose reference passes no gradient on from the array of one name."""

    stopped = ""

    def tap(self, name: str, value: Any) -> Any:
        return super().tap(name, value * 0.0 if name == self.stopped else value)


class StoppingTape(dict[str, Any]):
    """A tape that does the same without a candidate."""

    stopped = ""

    def tap(self, name: str, value: Any) -> Any:
        self[name] = value * 0.0 if name == self.stopped else value
        return self[name]


def verdicts(
    run: Judged, tree: str = "attn_np", backward: bool = True, strict: bool = False
) -> tuple[list[Row], Anchor]:
    """Every verdict on a run, in dataflow order, each stage on the run's own numbers.

    Raises:
        Departure: something is beyond its bound, where that is asked for by `strict`.
    """
    taps = run.outcome.tape | run.outcome.cotangents
    matter = consequences(run.case, run.drawn) if run.partial else None
    anchor = Anchor(taps, run.precision, run.fused, strict, matter, explained=run.explained)
    if run.stopped:
        anchor = Stopping(taps, run.precision, run.fused, strict, matter, explained=run.explained)
        anchor.stopped = scoped(run.stopped)
    found, grads = reference(run.case, run.drawn, anchor, run.precision, tree, backward)
    rows = list(tape_rows(run.case, run.who, run.outcome, anchor, {}, run.partial))
    ends, stages = (found, grads) if backward else (found, {})
    if run.partial:
        ends = {name: want for name, want in ends.items() if name in run.outcome.outputs}
        stages = {name: want for name, want in stages.items() if name in run.outcome.grads}
    outcome = run.outcome if backward else replace(run.outcome, grads={})
    rows += judge_ends(run.case, run.who, outcome, ends, stages)
    # An output that the candidate taped is judged as a stage first.
    anchor.wanted |= {name: want for name, want in (ends | stages).items() if name not in run.outcome.tape}
    rows = rows if backward else [row for row in rows if row.stage in FORWARD]
    rows = [row for row in rows if row.name not in run.explained]
    inputs = {f"d{name}" for name in run.case.config.arguments()}

    def place(row: Row) -> tuple[int, bool]:
        """In the order of the computation: the gradients of the inputs come last, after those of the weights."""
        return STAGES.index(row.stage), row.stage.endswith("gradient") and row.name in inputs

    return sorted(rows, key=place), anchor


@lru_cache(maxsize=512)  # the mistakes that one variant can have, twice
def kept(edits: tuple[Mutant, ...]) -> Copy:
    """A copy with these edits, whose modules run once: a search makes the same mistakes in every call and type."""
    return with_bugs("attn_np", *edits)


@contextmanager
def tree_of(setup: Setup) -> Iterator[str]:
    """The name of attn_np, or of a copy of it with the setup's edits that can derive bounds."""
    if not setup.edits:
        yield "attn_np"
        return
    with kept(setup.edits).importable() as alias:
        import_module(f"{alias}.{setup.case.config.variant}")
        adopt(alias)
        try:
            yield alias
        finally:
            disown(alias)


class HoldingTape(dict[str, Any]):
    """A tape that goes on with other values for the arrays of some names."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__()
        self.held = held

    def tap(self, name: str, value: Any) -> Any:
        self[name] = self.held.get(name, value)
        return self[name]


def exact(setup: Setup, backward: bool, tree: str = "attn_np", held: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every array of the reference by name, in float64 without bounds: twenty times faster than with them.

    `held` are arrays that have other values than those that the reference computes.
    """
    case, drawn, tape = setup.case, setup.drawn, dict[str, Any]() if not held else HoldingTape(held)
    if setup.stopped:
        tape = StoppingTape()
        tape.stopped = scoped(setup.stopped)
    layer = numpy_layer(case.at("float64"), {name: widened(x) for name, x in drawn.params.items()}, tree)
    given = {name: widened(x) for name, x in drawn.inputs.items()}
    with np.errstate(all="ignore"):
        found = leaves(layer(**given, **extras(case.config.variant, case.config.class_name), tape=tape))
        if not backward:
            return tape | found
        dys = pulled(case, drawn, {name: x.shape for name, x in found.items()})
        grads = layer.vjp(tape, *(widened(dy) for dy in dys.values()))
    # In the order of the computation, as the verdicts are: the gradients of the inputs come last.
    return tape | found | {f"d{name}": x for name, x in (grads.params | grads.inputs).items()}
