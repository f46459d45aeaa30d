"""Queries that see no key: 0 here, NaN or the mean of the values in a port that fills hidden scores."""

import numpy as np

from parity_tests.bounds.precision import EXACT
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.search import EMPTY, FILLED
from parity_tests.judge.cases import seeing
from parity_tests.judge.judging import reference
from parity_tests.mistakes import MUTANTS
from parity_tests.mistakes.masks import SELECT
from parity_tests.ports.port import Port
from parity_tests.ports.trace import Trace
from parity_tests.ports.watch import number

LEFT_OUT = "empty_rows=False leaves out masks that hide every key from a query"
ONLY_EMPTY_FIRST = f"only queries that see no key differ, where 0 is expected, or gradients through them: {LEFT_OUT}"
ALSO_EMPTY = "queries that see no key differ, too"
AGREES = "with masks that leave every query a key all numbers lie within their bounds"


def sees_nothing(trace: Trace) -> bool:
    """Whether a call has masks that hide every key from some query."""
    return any(not np.array_equal(seeing(trace.case, name, x), x) for name, x in trace.drawn.inputs.items())


def hidden_in(trace: Trace) -> np.ndarray | None:
    """Who is hidden from whom in a call, `b h t s`; None where the reference has no such scores."""
    tape: dict[str, np.ndarray] = {}
    reference(trace.case, trace.drawn, tape, EXACT, backward=False)
    allowed = tape.get("allowed")
    if allowed is None or np.ndim(allowed) not in (3, 4):
        return None
    allowed = np.asarray(allowed)
    return ~(allowed[:, None] if allowed.ndim == 3 else allowed)


def elsewhere(finding: Finding, hidden: np.ndarray | None) -> bool:
    """Whether an output that differs does so for a query that sees a key, too."""
    got, want, bound = finding.got, finding.want, finding.bound
    if finding.first.stage != "output" or hidden is None or got is None or want is None or bound is None:
        return False
    empty = np.any(np.all(hidden, axis=3), axis=1)  # b t: in any head
    if got.shape != want.shape or got.shape[:2] != empty.shape:
        return False
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - want) <= bound)
    rows = np.any(wrong.reshape(*empty.shape, -1), axis=-1)
    return bool(np.any(rows & ~empty))


def fill_used(found: Port, trace: Trace, hidden: np.ndarray | None) -> float | None:
    """The number by which a candidate hides keys, seen where it is computed; None where it cannot be seen."""
    if hidden is None or not hidden.any():
        return None
    found.watch.hidden, found.watch.fill = hidden, None
    try:
        found.candidate.run(trace.case, trace.drawn, False)
    finally:
        found.watch.hidden = None
    return found.watch.fill


def described_fill(fill: float) -> str:
    return f"{FILLED} {number(fill)}"


def only_empty(finding: Finding, fill: float | None) -> Finding:
    """A difference that queries that see no key make alone, with what gives it.

    Args:
        finding: the first difference.
        fill: the number by which the candidate hides keys, where it is known.
    """
    nan = finding.got is not None and finding.got.dtype.kind == "f" and bool(np.isnan(finding.got).any())
    mistake = next(mutant for mutant in MUTANTS if mutant.name == EMPTY)
    filled = described_fill(fill) if fill is not None else "a query that sees no key gets no weights of 0"
    name, fix = (mistake.name, mistake.fix) if nan else (filled, SELECT)
    finding.causes, finding.explains_all = [Cause(name, fix, 0.0, AGREES)], True
    return finding
