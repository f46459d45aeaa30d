"""What to do next: where in a module's code a difference arises, what explains it, and who can judge it alone."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity_tests.bounds.error_array import widened
from parity_tests.ports.modules.comparison import ModuleComparison, inside_of
from parity_tests.ports.modules.formulas import Source, formula_of, relation
from parity_tests.ports.modules.known import advice, judged
from parity_tests.ports.modules.names import pairs
from parity_tests.ports.modules.recordings import Arrays, Attention, Call
from parity_tests.ports.modules.rows import Lookup, Row, Two, apart

MOST = 4  # names that are listed
# Arrays that a module's own code has before a place: the last ones, which it is most likely to use there.
LAST = 7


def take_over(sides: tuple[Lookup, Lookup], result: ModuleComparison) -> None:
    """Judge the first difference with the reference if it is attention that is known here; else say where to look."""
    first = result.first
    if first is None or first.places[0] < 0:
        return
    if first.gradients:
        result.advice = where_gradients_part(result, first)
        return
    late = late_part(result, first)
    result.advice = where_inside(result, first, late)
    if first.verdict == "differs":
        result.cause = cause(sides, result, first, late)
    found = enclosing(result, first)
    if found is not None:
        hand_over(sides, result, *found)


def hand_over(sides: tuple[Lookup, Lookup], result: ModuleComparison, row: Row, whose: str, layer: Attention) -> None:
    """Let the reference judge attention that is known, and say how to judge it alone."""
    own_type = None
    for dtype, kind in (("float64", "exact"), ("float32", "own")):
        if kind == "own" and {result.a.probe, result.b.probe} != {"float32"}:
            break
        calls = {
            name: attention_call(side, result, row, name, whose, layer, kind == "own")
            for name, side in zip("ab", sides, strict=True)
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


def attention_call(
    side: Lookup, result: ModuleComparison, row: Row, name: str, whose: str, layer: Attention, own: bool
) -> Call | None:
    """The call of attention on one side; where its output projection stands outside, with what that gives."""
    calls, n = side.own if own else side.calls, "ab".index(name)
    call, at = calls[row.places[n]], (row.a, row.b)["ab".index(whose)]
    if call is None or not layer.output_owner or inside_of(layer.output_owner, at):
        return call
    after = next((x for x in result.rows if (x.a, x.b)["ab".index(whose)] == layer.output_owner), None)
    end = None if after is None else calls[after.places[n]]
    return None if end is None else replace(call, outputs=end.outputs)


def enclosing(result: ModuleComparison, first: Row) -> tuple[Row, str, Attention] | None:
    """The attention that a row is or is a part of, with the side that says so."""
    for row in result.rows:
        if row.verdict == "agrees" or not inside_of(first.a, row.a):
            continue
        for whose, recording, name in (("a", result.a, row.a), ("b", result.b, row.b)):
            if name in recording.attention:
                return row, whose, recording.attention[name]
    return None


# Inside of a module's own code ----------------------------------------------------------------------------------------


def parts_of(result: ModuleComparison, first: Row) -> list[Row]:
    return [
        row for row in result.rows
        if row is not first and first.a != row.a and inside_of(row.a, first.a) and row.how != "order"
    ]  # fmt: skip


def late_part(result: ModuleComparison, first: Row) -> Row | None:
    """The first submodule of a module that gets other inputs."""
    return next((row for row in parts_of(result, first) if row.inputs is not None and not row.inputs.ok), None)


def short(row: Row, first: Row) -> str:
    return row.a[len(first.a) + 1 if first.a else 0 :]


def where_inside(result: ModuleComparison, first: Row, late: Row | None) -> str:
    """What the verdicts on its submodules say of a submodule's own code."""
    parts = parts_of(result, first)
    if not parts:
        calls = result.a.exact.calls[first.places[0]], result.b.exact.calls[first.places[1]]
        told = (
            f"{side} has {', '.join(f'{name}={x!r}' for name, x in call.numbers.items())}"
            for side, call in zip("ab", calls, strict=True)
            if call.numbers
        )
        return "; ".join(["look at its code, its constants and its weights", *told])
    end = parts.index(late) if late is not None else len(parts)
    right = [short(row, first) for row in parts[:end] if row.verdict == "agrees"]
    right = [name for name in right if not any(inside_of(name, other) for other in right if other != name)]
    more = f"{len(right) - MOST} more and " if len(right) > MOST else ""
    before = [f"{more}{', '.join(right[-MOST:])} agree"] if right else []
    if late is not None:
        before.append(f"{short(late, first)} is the first that gets other inputs")
    return f"look at its own code around its submodules: {'; '.join(before)}" if before else "look at its own code"


def where_gradients_part(result: ModuleComparison, first: Row) -> str:
    """Between which of its parts a module's own code changes a gradient."""
    parts = [row for row in parts_of(result, first) if row.backward is not None]
    passed = next((row for row in parts if row.backward == "passes"), None)
    stopped = next((row for row in reversed(parts) if row.backward == "gets another"), None)
    told = f"outputs agree, and so does the gradient that comes in; those of {listed(first.gradients)} differ"
    if stopped is not None and passed is not None:
        return f"{told}: look at its own code between {short(stopped, first)} and {short(passed, first)}"
    if stopped is not None:
        return f"{told}: look at its own code after {short(stopped, first)}"
    if passed is not None:
        return f"{told}: look at its own code before {short(passed, first)}"
    return f"{told}: look at what its code detaches or computes without a gradient"


def listed(names: list[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")


def cause(sides: tuple[Lookup, Lookup], result: ModuleComparison, first: Row, late: Row | None) -> str:
    """What each side's own code computes, where both follow formulas, and different ones; "" where they do not."""
    row, part, where = (first, "outputs", "") if late is None else (late, "inputs", f"{short(late, first)} gets ")
    two = furthest(sides, row, part)
    if two is None:
        return ""
    arrays, found = [], []
    for n, (side, recording, name) in enumerate(zip(sides, (result.a, result.b), (two.a, two.b), strict=True)):
        y = getattr(side.calls[row.places[n]], part)[name]
        given = list(sources(sides, result, first, row, n))
        prefix = f"{(first.a, first.b)[n]}." if (first.a, first.b)[n] else ""
        params: Arrays = {
            name.removeprefix(prefix): widened(x)
            for name, x in recording.weights.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }
        bound = far_bound(row, part)
        arrays.append(two.changes[n](y))
        found.append(formula_of(y, bound, given, params, side.calls[first.places[n]].numbers))
    told = relation(arrays[0], arrays[1], far_bound(row, part))
    lines = [f"{where}{part if not where else 'inputs'} in b that are {told}"] if told else []
    if all(found) and found[0] != found[1]:
        lines.append(f"{where or 'it gives '}{found[0]} in a, {found[1]} in b")
    elif found[0] != found[1]:
        known, other = "ab" if found[0] else "ba"
        lines.append(f"{where or 'it gives '}{found[0] or found[1]} in {known}, and something else in {other}")
    return "; ".join(lines)


def far_bound(row: Row, part: str) -> float:
    far = row.output if part == "outputs" else row.inputs
    return 0.0 if far is None else far.bound


def furthest(sides: tuple[Lookup, Lookup], row: Row, part: str) -> Two | None:
    """The pair of arrays whose distance the row tells."""
    found = row.returned if part == "outputs" else row.given
    return max(found, key=lambda two: apart(sides, row.places, part, two).ratio, default=None)


def sources(
    sides: tuple[Lookup, Lookup], result: ModuleComparison, first: Row, late: Row, side: int
) -> Iterator[Source]:
    """What a module's own code has before a place, under the names of a: its inputs, and what its submodules gave."""
    call = sides[side].calls[first.places[side]]
    for two in first.given:
        x = call.inputs[(two.a, two.b)[side]]
        yield Source(f"its input{'' if len(first.given) == 1 else f' {two.a}'}", x)
    known = {row.places[side]: row for row in result.rows}
    whole = (first.a, first.b)[side]
    before = []
    for n, part in enumerate(sides[side].calls[: late.places[side]]):
        unsure = n in known and known[n].how == "order"
        if part.name == whole or not inside_of(part.name, whole) or not part.outputs or unsure:
            continue
        own = part.name[len(whole) + 1 if whole else 0 :]
        name = short(known[n], first) if n in known else f"{own} (in {'ab'[side]} alone)"
        y = next(iter(part.outputs.values()))
        if before and np.array_equal(before[-1].value, y):  # what a module's last part gives, the module gives
            before.pop()
        before.append(Source(name, y))
    yield from before[-LAST:]
