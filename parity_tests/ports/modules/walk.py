"""The walk through two recordings: the first submodule that differs although its inputs agree."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parity_tests.ports.modules.bounds import Distance
from parity_tests.ports.modules.comparison import ModuleComparison
from parity_tests.ports.modules.known import advice, judged
from parity_tests.ports.modules.match import Match, matches
from parity_tests.ports.modules.names import Names, pairs, refuse_unused
from parity_tests.ports.modules.recordings import Attention, Recording, Run
from parity_tests.ports.modules.rows import Lookup, Row, first_outputs, gradients, row_of

# From the values after some calls of each side, by name and turn, to its runs with them: in float64, and with moved
# constants.
Local = Callable[..., tuple[tuple[Run, Run | None], tuple[Run, Run | None]]]


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
    refuse_unused(a, b, names)
    sides = Lookup(a), Lookup(b)

    def same(i: int, j: int) -> bool:
        apart = first_outputs(sides, i, j)
        return apart is not None and apart.ok

    found = matches(a.exact, b.exact, names, same)
    rows = [row for row in (row_of(sides, match) for match in found) if row is not None]
    if not any(not row.a for row in rows):
        raise ValueError(
            "compare_modules: expected the two to return arrays of one shape, got none; "
            "give calls= that return what is to be compared"
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
    result = ModuleComparison(a, b, names, rows, list(gradients(a, b, names)), only_a, only_b)
    if any(row.places[0] >= 0 for row in result.differences):
        for row in result.gradients:  # where the outputs differ, gradients follow
            row.verdict = "agrees" if row.output.ok else "follows"
    take_over(result)
    return result


def refine(rows: list[Row], sides: tuple[Lookup, Lookup], local: Local) -> None:
    """Judge again what agrees, each submodule on the values of a.

    Rounded constants widen the bound of everything after them. With the values of a after every call that agrees, they
    widen only the bound of the submodule that uses them, and a small difference shows in its own place. A later
    difference that vanishes with these values follows from an earlier one, which its inputs show too little of.
    """
    settled = [row for row in rows if row.a and row.verdict == "agrees" and row.how == "name"]
    values: list[dict[tuple[str, int], np.ndarray]] = [{}, {}]
    for row in settled:
        x = next((x for x in sides[0].calls[row.places[0]].outputs.values() if x.dtype.kind == "f"), None)
        for side, place, part in zip(sides, row.places, values, strict=True):
            if x is not None:
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
        elif new is not None and new.output is not None and new.output.ok:
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
            inside = any(inside_of(name, row.a) for name in found)
            row.verdict = "follows" if inside or not agrees(row.inputs) else word
            if row.verdict == word:
                found.append(row.a)


def inside_of(part: str, whole: str) -> bool:
    return not whole or part == whole or part.startswith(f"{whole}.")


# What to do next ------------------------------------------------------------------------------------------------------


def take_over(result: ModuleComparison) -> None:
    """Judge the first difference with the reference if it is attention that is known here; else say where to look."""
    first = result.first
    if first is None or first.places[0] < 0:
        return
    result.advice = where_inside(result, first)
    found = enclosing(result, first)
    if found is None:
        return
    row, whose, layer = found
    own_type = None
    for dtype, kind in (("float64", "exact"), ("float32", "own")):
        if kind == "own" and {result.a.probe, result.b.probe} != {"float32"}:
            break
        calls = {
            side: Lookup(recording).own[place] if kind == "own" else recording.exact.calls[place]
            for side, recording, place in (("a", result.a, row.places[0]), ("b", result.b, row.places[1]))
        }
        trusted, other = calls[whose], calls["b" if whose == "a" else "a"]
        if trusted is None or other is None:
            break
        # The side that says what it is must be what it says, or nothing follows for the other.
        could, wrong = judged(whose, layer, trusted, dtype, trusted)
        if could and wrong is None:
            name = row.b if whose == "a" else row.a
            result.finding = judged(f"{name} of {'b' if whose == 'a' else 'a'}", layer, other, dtype, trusted)[1]
            if result.finding is not None:
                own_type = None if dtype == result.b.dtype else dtype
                break
    if whose == "a":
        partner = result.b.exact.calls[row.places[1]]
        found_pairs = pairs(result.a, result.b, result.names, need_all=False)
        result.advice = advice(layer, result.b.who, partner, found_pairs, own_type)


def enclosing(result: ModuleComparison, first: Row) -> tuple[Row, str, Attention] | None:
    """The attention that a row is or is a part of, with the side that says so."""
    for row in result.rows:
        if row.verdict == "agrees" or not inside_of(first.a, row.a):
            continue
        for whose, recording, name in (("a", result.a, row.a), ("b", result.b, row.b)):
            if name in recording.attention:
                return row, whose, recording.attention[name]
    return None


def where_inside(result: ModuleComparison, first: Row) -> str:
    """What the verdicts on its submodules say of a submodule's own code."""
    parts = [row for row in result.rows if row is not first and first.a != row.a and inside_of(row.a, first.a)]
    start = len(first.a) + 1 if first.a else 0
    right = ", ".join(row.a[start:] for row in parts if row.verdict == "agrees")
    late = ", ".join(row.a[start:] for row in parts if row.verdict == "follows")
    if not parts:
        calls = result.a.exact.calls[first.places[0]], result.b.exact.calls[first.places[1]]
        told = (
            f"{side} has {', '.join(f'{name}={x!r}' for name, x in call.numbers.items())}"
            for side, call in zip("ab", calls, strict=True)
            if call.numbers
        )
        return "; ".join(["look at its code, its constants and its weights", *told])
    before = f"{right} agree" if right else ""
    after = f"{late} get other inputs" if late else ""
    return f"look at its own code around its submodules: {'; '.join(x for x in (before, after) if x)}"
