"""The walk through two recordings: the first submodule that differs although its inputs agree."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parity_tests.ports.modules.advise import take_over
from parity_tests.ports.modules.backward import walk_back
from parity_tests.ports.modules.bounds import Distance
from parity_tests.ports.modules.comparison import ModuleComparison, inside_of
from parity_tests.ports.modules.match import Match, matches
from parity_tests.ports.modules.names import Names, refuse_unused, same_weights
from parity_tests.ports.modules.recordings import Recording, Run
from parity_tests.ports.modules.rows import Lookup, Row, first_outputs, gradients, row_of

# From the values after some calls of each side, by name and turn, to its runs with them: in float64, and with moved
# constants.
Local = Callable[..., tuple[tuple[Run, Run | None], tuple[Run, Run | None]]]


def nan_share(a: Recording, b: Recording) -> float:
    """How much of the outputs is NaN on both sides: it equals itself, and says nothing. From 0 to 1."""
    ends = [[x for x in side.exact.calls[-1].outputs.values() if x.dtype.kind == "f"] for side in (a, b)]
    alike = [(x, y) for x, y in zip(*ends, strict=False) if x.shape == y.shape and x.size]
    both = sum(int(np.sum(np.isnan(x) & np.isnan(y))) for x, y in alike)
    return both / max(1, sum(x.size for x, _ in alike))


def compare_recordings(a: Recording, b: Recording, names: Names = None, local: Local | None = None) -> ModuleComparison:
    """Match the submodules of two recordings, and walk them in the order in which they were called.

    Args:
        a, b: the recordings.
        names: names in a to names in b.
        local: runs both again from values that are given; None where the modules are not at hand.

    Raises:
        ValueError: the two were given different inputs, or give no array that both have; names that neither has.
    """
    for name in a.inputs.keys() & b.inputs.keys():
        if not np.array_equal(a.inputs[name], b.inputs[name], equal_nan=a.inputs[name].dtype.kind == "f"):
            raise ValueError(f"compare_modules: expected equal inputs on both sides, got two of {name!r}; record anew")
    masks = [np.zeros(0) if side.tokens is None else side.tokens for side in (a, b)]
    if not np.array_equal(masks[0], masks[1]):
        raise ValueError("compare_modules: expected equal tokens on both sides, got two masks of padding; record anew")
    refuse_unused(a, b, names)
    if (share := nan_share(a, b)) == 1:
        raise ValueError(
            "compare_modules: expected numbers to compare, got outputs that are NaN everywhere on both sides; "
            "give inputs without NaN, and masks that leave each query a key"
        )
    sides = Lookup(a), Lookup(b)

    def same(i: int, j: int) -> bool:
        apart = first_outputs(sides, i, j)
        return apart is not None and apart.ok

    found = matches(a.exact, b.exact, names, same, same_weights(a, b, names))
    rows = [row for row in (row_of(sides, match) for match in found) if row is not None]
    whole = next((row for row in rows if not row.a), None)
    if whole is None or whole.output.shapes is not None:
        got = "none" if whole is None or whole.output.shapes is None else " and ".join(map(str, whole.output.shapes))
        raise ValueError(
            f"compare_modules: expected the two to return arrays of one shape, got {got}; "
            f"give calls= that return what is to be compared"
        )
    judge_rows(rows)
    taken = {match.a for match in found}, {match.b for match in found}
    only_a, only_b = (
        list(dict.fromkeys(call.name for i, call in enumerate(side.exact.calls) if i not in part))
        for side, part in zip((a, b), taken, strict=True)
    )
    if ends_agree(rows):
        for row in rows:
            row.verdict = "elsewhere" if row.verdict == "differs" else row.verdict
    if local is not None:
        refine(rows, sides, local)
    result = ModuleComparison(a, b, names, rows, list(gradients(a, b, names)), only_a, only_b, nan_share=share)
    if any(row.places[0] >= 0 for row in result.differences):
        for row in result.gradients:  # where the outputs differ, gradients follow
            row.verdict = "agrees" if row.output.ok else "follows"
    else:
        walk_back(sides, result)
    take_over(sides, result)
    return result


def refine(rows: list[Row], sides: tuple[Lookup, Lookup], local: Local) -> None:
    """Judge again what agrees, each submodule on the values of a.

    Rounded constants widen the bound of everything after them. With the values of a after every call that agrees, they
    widen only the bound of the submodule that uses them, and a small difference shows in its own place. A later
    difference that vanishes with these values follows from an earlier one, which its inputs show too little of.
    """
    settled = [row for row in rows if row.a and row.verdict == "agrees" and row.how in ("name", "weights")]
    values: list[dict[tuple[str, int], np.ndarray]] = [{}, {}]
    for row in settled:
        x, y = (
            next((x for x in side.calls[place].outputs.values() if x.dtype.kind == "f"), None)
            for side, place in zip(sides, row.places, strict=True)
        )
        if x is not None and y is not None and x.shape == y.shape:
            for side, place, part in zip(sides, row.places, values, strict=True):
                part[side.turn(place)] = x
    again: list[Lookup] = []
    for side, (exact, moved) in zip(sides, local(*values), strict=True):
        again.append(Lookup(replace(side.recording, exact=exact, moved=moved)))
    mended: list[Row] = []
    for row in rows:
        if row.verdict not in ("agrees", "differs"):
            continue
        i, j = (new.turns.get(side.turn(n)) for new, side, n in zip(again, sides, row.places, strict=True))
        new = None if i is None or j is None else row_of((again[0], again[1]), Match(i, j, row.how))
        if new is not None and row.verdict == "agrees":
            row.output, row.inputs = new.output, new.inputs
        elif new is not None and new.output.ok:
            mended.append(row)
    judge_rows(rows)
    first = next((row for row in rows if row.verdict == "differs"), None)
    for row in mended:
        row.verdict = row.verdict if row is first else "follows"


def ends_agree(rows: list[Row]) -> bool:
    return all(row.verdict == "agrees" for row in rows if not row.a)


def judge_rows(rows: list[Row]) -> None:
    """Say of each row whether it agrees, differs, or follows from others.

    A submodule ends before those that contain it. So a difference that is found in a part is not found again in the
    whole. Precision is judged in the same way.
    """
    for bad, word in (("ok", "differs"), ("less_precise", "less precise")):

        def agrees(x: Distance | None, bad: str = bad) -> bool:
            return x is None or (x.ok if bad == "ok" else x.less_precise is None)

        found: list[str] = []
        for row in rows:
            if agrees(row.output) or row.verdict not in ("agrees", word):
                continue
            if row.how == "order":  # they may be two that have nothing in common
                row.verdict = "unsure"
                continue
            inside = any(inside_of(name, row.a) for name in found)
            row.verdict = "follows" if inside or not agrees(row.inputs) else word
            if row.verdict == word:
                found.append(row.a)
