"""The walk back: the first submodule that changes a gradient although the one that it gets agrees."""

from collections.abc import Iterator

import numpy as np

from parity_tests.ports.modules.comparison import ModuleComparison, inside_of
from parity_tests.ports.modules.names import common
from parity_tests.ports.modules.recordings import Recording
from parity_tests.ports.modules.rows import Lookup, Row, Two, gradient_apart


def walk_back(sides: tuple[Lookup, Lookup], result: ModuleComparison) -> None:
    """Where the outputs agree and gradients do not, say in which submodules they part.

    Gradients go from the outputs to the inputs. A submodule that gets the same gradient on both sides, and passes on
    another to its inputs or to its weights, has the mistake, in one of its submodules or in its own code.
    """
    wrong = [row for row in result.gradients if row.verdict == "differs"]
    if not wrong:
        return
    owners = {
        id(one): common([owner_of(name) for part in one.a.split(", ") for name in tied(result.a, part)])
        for one in wrong
        if one.kinds[0].endswith("weight")
    }
    rows = [row for row in result.rows if row.how != "order"]
    # A weight's gradient is the sum over all calls.
    late = {row.a for row in rows if any(differs(sides, row, "output", two) for two in row.returned)}
    guilty: list[Row] = []
    for row in rows:
        bad = [f"the input {two.a}" for two in row.given if differs(sides, row, "input", two)]
        bad += [f"the weight {one.a}" for one in wrong if id(one) in owners and inside_of(owners[id(one)], row.a)]
        if row.a in late:
            row.backward = "gets another"
        elif bad:
            row.gradients = bad
            guilty.append(row)
        elif any(reaches(sides, row, two) for two in row.returned):
            row.backward = "passes"
    for row in result.gradients:
        row.verdict = row.verdict if row.verdict == "agrees" else "follows"
    for row in guilty:
        inner = any(part.a != row.a and inside_of(part.a, row.a) for part in guilty)
        row.verdict = "follows" if inner else "differs"


def differs(sides: tuple[Lookup, Lookup], row: Row, part: str, two: Two) -> bool:
    far = gradient_apart(sides, row, part, two)
    return far is not None and not far.ok


def reaches(sides: tuple[Lookup, Lookup], row: Row, two: Two) -> bool:
    return gradient_apart(sides, row, "output", two) is not None


def owner_of(weight: str) -> str:
    return weight.rpartition(".")[0]


def tied(recording: Recording, weight: str) -> Iterator[str]:
    """A weight and the other names of the same array: its gradient is the sum over all of its uses."""
    x = recording.weights[weight]
    yield weight
    for name, other in recording.weights.items():
        if name not in recording.exact.weight_grads and other.shape == x.shape and np.array_equal(other, x):
            yield name
