"""The walk through two recordings: the first submodule that differs although its inputs agree."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from parity_tests.explain.findings import Finding, told
from parity_tests.ports.modules import known
from parity_tests.ports.modules.bounds import Distance, distance, measure
from parity_tests.ports.modules.match import Match, matches, numbered
from parity_tests.ports.modules.names import Names, Pair, pairs
from parity_tests.ports.modules.recordings import Arrays, Call, Recording, Run


@dataclass
class Row:
    """A submodule of a and the one of b that is the same; or a gradient.

    Attributes:
        a, b: their names; "" for the modules themselves.
        kinds: the names of their classes; "gradient" for a gradient.
        how: how it is known that they are the same: "name", "numbers" or "order".
        inputs, output: how far each pair of arrays is apart; of several, the one furthest beyond its bound.
        places: of the two calls, in the runs in float64.
        verdict: "agrees", "differs", "less precise" (in its own type alone), or "follows" from its inputs or from
            submodules of its own.
    """

    a: str
    b: str
    kinds: tuple[str, str]
    how: str
    inputs: Distance | None
    output: Distance
    places: tuple[int, int] = (-1, -1)
    verdict: str = "agrees"

    @property
    def label(self) -> str:
        names = [name or "the module itself" for name in (self.a, self.b)]
        return names[0] if names[0] == names[1] else f"{names[0]} (a), {names[1]} (b)"


@dataclass
class ModuleComparison:
    """What two recordings say about each other.

    Attributes:
        a, b: the recordings.
        names: names in a to names in b.
        rows: the submodules that both have, in the order in which those of a end.
        gradients: of the inputs and of the weights.
        only_a, only_b: the submodules that were called on one side alone.
        finding: where the first difference is attention that is known here: what is wrong with it.
        advice: what to do next, in words.
    """

    a: Recording
    b: Recording
    names: Names
    rows: list[Row]
    gradients: list[Row] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    finding: Finding | None = None
    advice: str = ""

    @property
    def agree(self) -> bool:
        """Whether the modules agree: their outputs, precision and gradients."""
        ends = [row for row in self.rows if not row.a]
        return all(row.verdict == "agrees" for row in [*ends, *self.gradients])

    @property
    def differences(self) -> list[Row]:
        """What differs and does not follow from another difference; empty where the modules agree."""
        if self.agree:
            return []
        return [row for row in [*self.rows, *self.gradients] if row.verdict in ("differs", "less precise")]

    @property
    def first(self) -> Row | None:
        """The first of the differences."""
        return next(iter(self.differences), None)

    def __str__(self) -> str:
        return "\n".join(words(self))


def compare_recordings(a: Recording, b: Recording, names: Names = None) -> ModuleComparison:
    """Match the submodules of two recordings, and walk them in the order in which they were called.

    Raises:
        ValueError: the two were given different inputs, or give no array that both have.
    """
    for name in a.inputs.keys() & b.inputs.keys():
        if not np.array_equal(a.inputs[name], b.inputs[name], equal_nan=a.inputs[name].dtype.kind == "f"):
            raise ValueError(f"compare_modules: expected equal inputs on both sides, got two of {name!r}; record anew")
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
    alone = [
        list(dict.fromkeys(call.name for i, call in enumerate(side.exact.calls) if i not in part))
        for side, part in zip((a, b), taken, strict=True)
    ]
    result = ModuleComparison(a, b, names, rows, list(gradients(a, b, names)), *alone)
    if not all(row.verdict == "agrees" for row in rows if not row.a):
        for row in result.gradients:  # where the outputs differ, gradients follow
            row.verdict = "agrees" if row.output.ok else "follows"
    take_over(result)
    return result


class Lookup:
    """A recording, and for each call of its float64 run the same call of its other runs."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.calls = recording, recording.exact.calls
        self.own, self.moved = (self.aligned(run) for run in (recording.own, recording.moved))

    def aligned(self, run: Run | None) -> list[Call | None]:
        places = {} if run is None else numbered([call.name for call in run.calls])
        turns = numbered([call.name for call in self.calls])
        found: list[Call | None] = [None] * len(self.calls)
        for key, i in turns.items():
            if run is not None and key in places:
                found[i] = run.calls[places[key]]
        return found

    def part(self, i: int, part: str) -> tuple[Arrays, Arrays, Arrays | None]:
        """The inputs or the outputs of a call, in each run."""
        own, moved = self.own[i], self.moved[i]
        return getattr(self.calls[i], part), getattr(own, part, {}), getattr(moved, part, None)


def distances(sides: tuple[Lookup, Lookup], i: int, j: int, part: str) -> Iterator[Distance]:
    """The arrays of two calls, each with the next of the same shape on the other side."""
    one, other = sides[0].part(i, part), sides[1].part(j, part)
    free = list(other[0])
    for name, x in one[0].items():
        kind = x.dtype.kind
        partner = next((k for k in free if other[0][k].shape == x.shape and other[0][k].dtype.kind == kind), None)
        if partner is not None:
            free.remove(partner)
            yield distance(measure(sides[0].recording, *one, name), measure(sides[1].recording, *other, partner))


def first_outputs(sides: tuple[Lookup, Lookup], i: int, j: int) -> Distance | None:
    """How far the first outputs of two calls are apart, where they have one shape and hold numbers."""
    outputs = [next(iter(side.calls[n].outputs.values()), None) for side, n in zip(sides, (i, j), strict=True)]
    if any(x is None or x.dtype.kind != "f" or not x.any() for x in outputs):
        return None
    if outputs[0].shape != outputs[1].shape:  # type: ignore[union-attr] - None was left out
        return None
    return next(distances(sides, i, j, "outputs"), None)


def row_of(sides: tuple[Lookup, Lookup], match: Match) -> Row | None:
    """The verdict on two calls by themselves; None where they return nothing of one shape."""
    inputs, outputs = (list(distances(sides, match.a, match.b, part)) for part in ("inputs", "outputs"))
    if not outputs:
        return None
    calls = sides[0].calls[match.a], sides[1].calls[match.b]
    worst = [max(part, key=lambda x: (x.ratio, x.less_precise or "")) if part else None for part in (inputs, outputs)]
    output = worst[1]
    return None if output is None else Row(
        calls[0].name, calls[1].name, (calls[0].kind, calls[1].kind), match.how, worst[0], output, (match.a, match.b)
    )  # fmt: skip


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


def gradients(a: Recording, b: Recording, names: Names) -> Iterator[Row]:
    """The gradients that both sides have: of the inputs, and of the weights in the axes of b."""

    def row(name: str, other: str, kind: str, pair: Pair | None = None) -> Row | None:
        parts = []
        for recording, key in ((a, name), (b, other)):
            runs = [
                {} if run is None else getattr(run, kind) for run in (recording.exact, recording.own, recording.moved)
            ]
            if pair is not None and recording is a:
                runs = [{key: pair.move(part[key])} if key in part else {} for part in runs]
            if any(key not in part for part in runs[:2]):
                return None
            parts.append(measure(recording, runs[0], runs[1], runs[2] or None, key))
        apart = distance(*parts)
        verdict = "agrees" if apart.ok and not apart.less_precise else "differs" if not apart.ok else "less precise"
        what = "input" if pair is None else "weight"
        return Row(name, other, (f"gradient of the {what}",) * 2, "name", None, apart, verdict=verdict)

    found = [row(name, name, "input_grads") for name in a.exact.input_grads]
    found += [row(pair.a, pair.b, "weight_grads", pair) for pair in pairs(a, b, names, need_all=False)]
    yield from (x for x in found if x is not None)


# What to do next ------------------------------------------------------------------------------------------------------


def take_over(result: ModuleComparison) -> None:
    """Where the first difference is attention that is known here, judge it with the reference; else say where to look."""
    first = result.first
    if first is None or first.places[0] < 0:
        return
    result.advice = where_inside(result, first)
    found = enclosing(result, first)
    if found is None:
        return
    row, whose, layer = found
    for dtype, kind in (("float64", "exact"), (result.a.probe, "own"), ("float32", "own")):
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
        could, wrong = known.judged(whose, layer, trusted, dtype)
        if could and wrong is None:
            name = row.b if whose == "a" else row.a
            result.finding = known.judged(f"{name} of {'b' if whose == 'a' else 'a'}", layer, other, dtype)[1]
            if result.finding is not None:
                break
    result.advice = known.advice(layer, row.a, row.b, whose, pairs(result.a, result.b, result.names, need_all=False))


def enclosing(result: ModuleComparison, first: Row) -> tuple[Row, str, known.Attention] | None:
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
        return "look at its code, at its constants and at its weights"
    before = f"{right} agree" if right else ""
    after = f"{late} get other inputs" if late else ""
    return f"look at its own code around its submodules: {'; '.join(x for x in (before, after) if x)}"


def words(result: ModuleComparison) -> Iterator[str]:
    """The comparison in words."""
    count, first = sum(row.places[0] >= 0 for row in result.rows), result.first
    types = f"{result.a.dtype} and {result.b.dtype}" if result.a.dtype != result.b.dtype else result.a.dtype
    if first is None:
        whole = next(row for row in result.rows if not row.a)
        yield (
            f"agree: {result.a.who} and {result.b.who}, {count} submodules and {len(result.gradients)} gradients, in "
            f"float64 and {types}; outputs {whole.output.apart:.2g} apart in float64, {whole.output.own:.2g} in their "
            f"own type"
        )
        odd = [row.label for row in result.rows if row.verdict != "agrees"]
        if odd:
            yield f"  give other numbers, without consequence: {', '.join(odd)}"
        return
    gradient = first.places[0] < 0
    what = f"{first.kinds[0]} {first.label}" if gradient else first.label
    kinds = "" if gradient else f": {first.kinds[0]} and {first.kinds[1]}"
    if first.verdict == "less precise":
        whose = result.a if first.output.less_precise == "a" else result.b
        yield f"mean the same, but {first.output.less_precise} ({whose.who}) is less precise first at {what}{kinds}"
        yield f"  errors in float32: {first.output.errors[0]:.2g} in a, {first.output.errors[1]:.2g} in b"
    else:
        yield f"differ first at {what}{kinds}"
        if first.inputs is not None:
            yield f"  inputs agree: {first.inputs.apart:.2g} apart in float64, with a bound of {first.inputs.bound:.1g}"
        out = first.output
        yield f"  {'gradients' if gradient else 'outputs'}: {out.apart:.2g} apart in float64, bound {out.bound:.1g}"
        yield f"  in their own types ({types}): {out.own:.2g} apart"
    before = result.rows[: result.rows.index(first)] if not gradient else result.rows
    yield f"  agree before it: {sum(row.verdict == 'agrees' for row in before)} submodules"
    if first.how != "name":
        yield f"  matched by {first.how}; names= makes it sure"
    more = [f"{row.kinds[0]} {row.label}" if row.places[0] < 0 else row.label for row in result.differences[1:]]
    if more:
        yield f"  differ by themselves, too: {', '.join(more)}"
    if result.finding is not None:
        yield from (f"  {line}" for line in told(result.finding).splitlines())
    if result.advice:
        yield f"  next: {result.advice}"
