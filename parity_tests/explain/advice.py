"""What to do next, where no known mistake gives a candidate's numbers."""

from parity_tests.explain.verdicts import FORWARD, Judged
from parity_tests.judge.judging import Row

MOST = 6  # stages that are named


def next_step(run: Judged, first: Row, stages: list[str]) -> str:
    """Which intermediates would narrow the difference down, and which type would show it better.

    Args:
        run: the candidate's.
        first: its first difference.
        stages: the names on the reference's tape, in dataflow order.
    """
    steps = []
    if run.partial:
        before = unseen(run, first, stages)
        if before:
            where = "at which of them it begins" if len(before) > 1 else "whether it begins there"
            steps.append(f"show {', '.join(before)} (taps=), to see {where}")
    if run.case.dtype != "float64":
        steps.append("judge it in float64, where rounding hides nothing")
    return "; ".join(steps)


def unseen(run: Judged, first: Row, stages: list[str]) -> list[str]:
    """The forward stages before the first difference that the candidate did not record, from the last recorded one."""
    forward = stages[: stages.index("dy")] if "dy" in stages else stages
    named = [name for name in forward if name not in run.drawn.inputs and not name.startswith(("seen_", "visible_"))]
    named = [name for name in named if name not in ("allowed", "keep", "bias", "positions", "y", "real", "live", "x")]
    if first.stage in FORWARD and first.name in named:
        named = named[: named.index(first.name)]
    shown = [i for i, name in enumerate(named) if name in run.outcome.tape]
    named = named[shown[-1] + 1 :] if shown and first.stage in FORWARD else named
    return [name for name in named if name not in run.outcome.tape][:MOST]
