"""What a candidate is called with: a few calls, a longer sequence where it shows more of the config, and shorter ones
where bounds say little.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.judge.candidates import extras, leaves, numpy_layer, output_shapes, pulled, run_numpy
from parity_tests.judge.cases import Case, Drawn, draw, given, seeing
from parity_tests.judge.judging import reference
from parity_tests.ports.names import Names, alike, pair
from parity_tests.ports.port import Port
from parity_tests.ports.trace import Trace, record
from parity_tests.ports.unjudged import Look, judged_by
from parity_tests.ports.untested import LENGTHS, Undetermined, cause_among, open_axes, sizes_at, telling_length
from parity_tests.ports.watch import narrower

# The longest sequence in which mistakes are searched: each is made in the reference, whose bounds take time.
SEARCHED = 65


@dataclass(frozen=True)
class Plan:
    """What is drawn for a candidate.

    Attributes:
        config, calls, empty_rows, seed: those of `assert_parity`.
        names: how its arguments and results map to ours.
        sizes: of axes that the config leaves open, by letter, where they are asked for.
    """

    config: Config
    calls: tuple[str, ...]
    empty_rows: bool
    seed: int
    names: Names
    sizes: Mapping[str, int]

    def drawn(
        self, found: Port, call: str, example: str = "yours", sizes: Mapping[str, int] = {}
    ) -> tuple[Case, Drawn]:
        """A call with as many of our arguments as a candidate takes."""
        case = Case(self.config.variant, example, call, found.dtype, self.seed, self.config)
        drawn = draw(case, found.arguments, found.required, {**sizes, **self.sizes})
        return case, alike(drawn, self.names)

    def prepared(self, found: Port, case: Case, drawn: Drawn) -> Drawn:
        """The call with the candidate's own weights."""
        returns = {pair(name)[0] for name in self.names.outputs if name is not None}
        return prepared(found, case, drawn, self.empty_rows, returns)

    def trace(self, found: Port, case: Case, drawn: Drawn) -> Trace:
        """The candidate's run."""
        return record(found.candidate, case, self.prepared(found, case, drawn), partial=True)


def runs(found: Port, plan: Plan, tell: Callable[[str], None]) -> Iterator[Trace]:
    """A trace of each call that differs from the ones before it in what is given."""
    seen: list[set[str]] = []
    for call in plan.calls:
        key = {*(name for name in given(plan.config, call) if name in found.arguments), *found.required}
        if key not in seen:
            seen.append(key)
            tell(f"the call {call} in {found.dtype}")
            yield plan.trace(found, *plan.drawn(found, call))


@dataclass(frozen=True)
class Run:
    """A run on a sequence of another length.

    Attributes:
        trace: what was computed; None where there is no such run or it is not judged.
        finding: what is wrong with it; None for nothing.
        narrower: it is not judged in float64, because part of it is computed in a narrower type.
    """

    trace: Trace | None = None
    finding: Finding | None = None
    narrower: bool = False


def longer_run(
    found: Port, traces: list[Trace], undetermined: Undetermined, plan: Plan, tell: Callable[[str], None]
) -> Run:
    """A longer sequence that shows more of the config, in the call with the fewest inputs."""
    shortest = min(traces, key=lambda trace: len(trace.drawn.inputs))
    letters = open_axes(shortest.case, shortest.drawn)
    if not letters:
        return Run()

    def drawn_at(length: int) -> tuple[Case, Drawn]:
        case, drawn = plan.drawn(found, shortest.case.call, f"{length} positions", sizes_at(letters, length))
        held = drawn.params if found.params is None else found.params
        return case, replace(drawn, params={name: held[name].astype(x.dtype) for name, x in drawn.params.items()})

    tell("looking for a length that shows more")
    length = telling_length(undetermined, (shortest.case, shortest.drawn), drawn_at)
    if length is None:
        return Run()
    tell(f"a sequence of {length} positions in {found.dtype}")
    run = run_of(found, f"a sequence of {length} positions", lambda: plan.trace(found, *drawn_at(length)))
    if run.trace is None or all(row.ok for row in run.trace.verdicts()[0]):
        return run
    trace = run.trace
    tell("looking for the cause")
    parts = ((n, plan.trace(found, *drawn_at(n))) for n in LENGTHS if n < length)
    where, first = next(((n, x) for n, x in parts if not all(row.ok for row in x.verdicts()[0])), (length, trace))
    causes = cause_among(undetermined, trace)  # of the longest, which tells most of them apart
    finding = explain(first.judged(), causes=not causes and where <= SEARCHED)
    if finding is None:
        raise ValueError("longer_run: expected a run that differs, got one that agrees; look at its verdicts")
    if causes or finding.after is not None:  # one mistake acts at a distance; two that make up for it are none
        finding.causes, finding.after, finding.explains_all = causes, None, bool(causes)
    if not finding.causes:
        words = f"what begins at a distance: tables and buckets, windows, lengths in training; length={where} shows it"
        finding.next_step = "; ".join(filter(None, (words, finding.next_step)))
    finding.patterns.insert(0, f"in a sequence of {where} positions; shorter ones agree")
    return Run(trace, finding)


def run_of(found: Port, what: str, recorded: Callable[[], Trace]) -> Run:
    """A run on another length; without its gradients, or none, where a narrower type makes the difference in float64,
    and none where the candidate refuses. The candidate's notes say so.
    """
    try:
        trace = recorded()
    except Exception as error:  # whatever a candidate raises for other lengths than it was made for
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
        found.notes[f"{what} not judged: {words}"] = None
        return Run()
    rows = trace.verdicts()[0]
    if found.dtype != "float64" or all(row.ok for row in rows):
        return Run(trace)
    why, part = narrower(found.watch, rows)
    if why:
        found.notes[f"{what} not judged in float64: {why}"] = None
        return Run(narrower=True)
    if part:
        found.notes[f"gradients of {what} not judged in float64: {part}"] = None
        return Run(replace(trace, outcome=replace(trace.outcome, grads={}, cotangents={})), narrower=True)
    return Run(trace)


# Sequences that are shorter than those that are judged anyway: bounds grow with each step of a recurrence.
SHORT = (5, 4, 3, 2, 1)


def shorter_run(found: Port, look: Look, trace: Trace, plan: Plan, tell: Callable[[str], None]) -> Run:
    """The longest of a few short sequences whose bounds judge the arrays that those of a trace do not, or most."""
    letters = open_axes(trace.case, trace.drawn, ("array", "integers"))
    best: tuple[int, Case, Drawn] = len(look.loose), trace.case, trace.drawn
    for length in SHORT if letters else ():
        sizes = {letter: length + i for i, letter in enumerate(letters)}
        try:
            words = f"{length} positions" if length > 1 else "1 position"
            case, drawn = plan.drawn(found, trace.case.call, words, sizes)
            drawn = plan.prepared(found, case, drawn)
            outputs, grads = reference(case, drawn, {}, precision_of(case.dtype))
        except (ValueError, TypeError):  # the variant has no sequence as short
            continue
        left = len({*look.loose} - judged_by(outputs | grads))
        if left < best[0]:
            best = left, case, drawn
        if not left:
            break
    _, case, drawn = best
    if case == trace.case:
        return Run()
    what = f"a sequence of {case.example} in the call {case.call}"
    tell(f"{what} in {found.dtype}")
    return run_of(found, what, lambda: plan.trace(found, case, drawn))


# Above this `exp` of a score overflows: a softmax that subtracts its largest score does not mind.
OVERFLOWS = {"float32": 88.8, "float64": 709.8}


def louder_run(found: Port, traces: list[Trace], tell: Callable[[str], None]) -> tuple[Trace | None, str]:
    """A call again with inputs so large that `exp` of a score overflows, forward alone; and in words how large.

    None where no such scores are formed, where the reference itself overflows, or where the candidate refuses.
    """
    case, drawn = traces[0].case, traces[0].drawn
    arguments, limit = case.config.arguments(), OVERFLOWS.get(case.dtype, np.inf)
    loud = {name for name in drawn.inputs if name in arguments and arguments[name].kind == "array"}

    def times(factor: float) -> Drawn:
        inputs = {n: (x * factor).astype(x.dtype) if n in loud else x for n, x in drawn.inputs.items()}
        return replace(drawn, inputs=inputs)

    def largest_score(drawn: Drawn) -> float:
        with np.errstate(all="ignore"):
            out = run_numpy(case, drawn, True)
        finite = all(np.isfinite(x).all() for x in out.outputs.values())
        return float(np.max(np.abs(out.tape.get("scores", np.zeros(1))), initial=0.0)) if finite else 0.0

    before = largest_score(drawn)
    factor = float(np.ceil(np.sqrt(3 * limit / before))) if before else np.inf
    if not np.isfinite(factor) or not largest_score(louder := times(factor)) > limit:
        return None, ""
    words = f"with inputs {factor:g} times as large"
    tell(f"{words} in {found.dtype}")
    run = run_of(found, words, lambda: record(found.candidate, case, louder, partial=True))
    if run.trace is None:
        return None, ""
    outcome = replace(run.trace.outcome, grads={}, cotangents={})
    return replace(run.trace, outcome=outcome), f"{words}: `exp` of its largest score overflows"


def prepared(found: Port, case: Case, drawn: Drawn, empty_rows: bool, returns: set[str]) -> Drawn:
    """The call's inputs, the candidate's own weights, and no gradient for what it does not return."""
    if not empty_rows:
        drawn = replace(drawn, inputs={name: seeing(case, name, x) for name, x in drawn.inputs.items()})
    if found.params is not None:
        drawn = replace(drawn, params={name: x.astype(drawn.params[name].dtype) for name, x in found.params.items()})
    held = pulled(case, drawn, output_shapes(case, drawn))
    if returns - held.keys():  # the weights, which get no gradient, or what the variant does not return
        layer, variant = numpy_layer(case, drawn.params), case.config.variant
        known = tuple(leaves(layer(**drawn.inputs, **extras(variant, case.config.class_name))))
        unknown = sorted(returns - {*known})
        if unknown:
            fix = contract.did_you_mean(unknown[0], known)
            raise ValueError(f"assert_parity: expected results of {variant} in outputs=, got {unknown[0]!r}; {fix}")
    return replace(drawn, pulled={name: x if name in returns else np.zeros_like(x) for name, x in held.items()})
