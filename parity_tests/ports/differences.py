"""What is said of a candidate that differs: by chance, for queries that see no key alone, or with its cause."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.verdicts import Judged
from parity_tests.judge.judging import Row
from parity_tests.ports.empty_rows import (
    ALSO_EMPTY,
    LEFT_OUT,
    ONLY_EMPTY_FIRST,
    described_fill,
    elsewhere,
    fill_used,
    hidden_in,
    only_empty,
    sees_nothing,
)
from parity_tests.ports.names import Names
from parity_tests.ports.port import Port
from parity_tests.ports.trace import Trace

CHECK_MAP = "check the patterns in weights=: (k h) for (h k), or a square weight not transposed, fits the shapes, too"
CHANCE = "call eval() first: dropout belongs to training; leave nothing else to chance"


def first_wrong(traces: list[Trace], rows: list[list[Row]]) -> Trace | None:
    """The first trace that differs."""
    return next((trace for trace, part in zip(traces, rows, strict=True) if not all(row.ok for row in part)), None)


def difference(
    found: Port,
    traces: list[Trace],
    trace: Trace,
    names: Names,
    note: str,
    seeing: Callable[[], Iterable[Trace]] | None,
) -> tuple[Finding, str, str]:
    """What is wrong with a trace, with what to say behind it and before it.

    Where masks leave a query without a key, the same calls without such masks say first whether this is all.
    """
    if by_chance(found, trace):
        finding = looked_at(trace)
        finding.causes = [Cause("by chance", CHANCE, 0.0, "the same call, run again, gives other numbers")]
        return finding, note, ""
    if seeing is not None and sees_nothing(trace):
        others = list(seeing())
        other = first_wrong(others, [each.verdicts()[0] for each in others])
        hidden, finding = hidden_in(trace), looked_at(trace)
        fill = fill_used(found, trace, hidden)
        if other is None and not elsewhere(finding, hidden):
            return only_empty(finding, fill), note, ONLY_EMPTY_FIRST
        if fill is not None or any(np.isnan(x).any() for x in trace.outcome.outputs.values()):
            words = ALSO_EMPTY if fill is None else f"{ALSO_EMPTY}, {described_fill(fill)}"
            note = "\n  ".join(filter(None, (note, f"{words}; {LEFT_OUT}")))
        if other is not None:
            traces, trace = others, other
    finding = looked_at(trace, True, [each.judged() for each in traces if each is not trace])
    if not finding.causes and isinstance(names.weights, Mapping):
        finding.next_step = "; ".join(filter(None, (finding.next_step, CHECK_MAP)))
    return finding, note, ""


def looked_at(trace: Trace, causes: bool = False, others: Sequence[Judged] = ()) -> Finding:
    """The first difference of a trace that differs."""
    finding = explain(trace.judged(), causes=causes, others=others)
    if finding is None:
        raise ValueError("looked_at: expected a trace that differs, got one that agrees; look at the verdicts")
    return finding


def by_chance(found: Port, trace: Trace) -> bool:
    """Whether the same call gives other numbers the next time, further apart than two right ones are."""
    finding = looked_at(trace)
    again = found.candidate.run(trace.case, trace.drawn, True)
    results = again.tape | again.cotangents | again.outputs | again.grads
    if finding.got is None or finding.bound is None:
        return False
    got, other = finding.got, results.get(finding.first.name)
    if other is None or not got.shape == other.shape == finding.bound.shape:
        return False
    with np.errstate(invalid="ignore"):
        return bool((np.abs(got - other) > 2 * finding.bound).any())
