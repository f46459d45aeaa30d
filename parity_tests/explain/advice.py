"""What to do next, where no known mistake gives a candidate's numbers."""

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.explain.verdicts import FORWARD, Judged
from parity_tests.judge.judging import Anchor, Row

MOST = 16  # stages that are named; of more, some from all over the forward pass
NARROW = ("bfloat16", "float16")


def next_step(run: Judged, first: Row, anchor: Anchor) -> str:
    """Which intermediates would narrow the difference down, and which type would show it better.

    Args:
        run: the candidate's.
        first: its first difference.
        anchor: the reference's tape.
    """
    if run.partial and run.case.dtype in NARROW:
        return rounds_throughout(run.case.dtype)
    steps = []
    if run.partial:
        before = unseen(run, first, anchor)
        if before:
            where = "at which of them it begins" if len(before) > 1 else "whether it begins there"
            steps.append(f"show {', '.join(before)} (taps=), to see {where}")
    if run.case.dtype != "float64":
        steps.append('judge it in float64 (dtype="float64"), where rounding hides nothing')
    return "; ".join(steps)


def as_if(constants: list[str]) -> str:
    """What to look at where only a constant of an unlikely value gives the numbers."""
    if not constants:
        return ""
    return f"{constants[0]} gives these numbers, an unlikely value: look for another mistake where it is used"


def selecting(constants: list[str]) -> str:
    """What to look at where only a whole number that chooses between steps gives the numbers."""
    if not constants:
        return ""
    return (
        f"{constants[0]} fits these numbers, and it only chooses between steps: look at it and at the lines that use it"
    )


def rounds_throughout(dtype: str) -> str:
    return (
        f'the candidate\'s type is {dtype}: judge what it means in float64, with dtype="float64"; in {dtype} it is '
        f"held to computing in float32 and rounding its results once, and most modules round every operation"
    )


def not_made_of(names: list[str], run: Judged) -> str:
    """What to do about intermediates that are wrong where all results are right."""
    shown = " and ".join(f"{run.outcome.names[n]} as {n}" if n in run.outcome.names else n for n in names)
    return f"the results agree where taps= does not show {shown}: they are made of another array; show that one"


def its_lines(first: Row, made_of: list[str]) -> str:
    """What to look at where every stage that could be shown is."""
    return f"look at the lines that make {first.name} of {', '.join(made_of)}, which agree" if made_of else ""


def unseen(run: Judged, first: Row, anchor: Anchor) -> list[str]:
    """The forward stages before the first difference that the candidate did not record, from the last recorded one.

    A stage that is the same array as an earlier one, such as a norm that the config does not have, shows nothing.
    """
    stages, forward = anchor.values, list(anchor.values)
    forward = forward[: forward.index("dy")] if "dy" in forward else forward
    before = [np.asarray(x) for x in (*run.drawn.inputs.values(), *run.drawn.params.values())]
    named = []
    for name in forward:
        if first.stage in FORWARD and name == first.name:
            break
        if not isinstance(stages[name], ErrArray) or name.startswith("zeroed_"):
            continue
        x = stages[name].v
        if not any(x.shape == other.shape and np.array_equal(x, other, equal_nan=True) for other in before):
            named.append(name)
            before.append(x)
    shown = [i for i, name in enumerate(named) if name in run.outcome.tape]
    named = named[shown[-1] + 1 :] if shown and first.stage in FORWARD else named
    named = [name for name in named if name not in run.outcome.tape and name not in run.outcome.outputs]
    return [named[i * len(named) // MOST] for i in range(MOST)] if len(named) > MOST else named
