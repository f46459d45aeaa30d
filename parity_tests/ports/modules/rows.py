"""Rows of a comparison: two calls that are the same, or two gradients, and how far they are apart."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from parity_tests.ports.modules.aligned import Change, changes, unchanged
from parity_tests.ports.modules.bounds import Distance, Known, distance, measure
from parity_tests.ports.modules.fused import Fused, fused
from parity_tests.ports.modules.match import Match, numbered
from parity_tests.ports.modules.names import Names, Pair, pairs
from parity_tests.ports.modules.recordings import Arrays, Call, Recording, Run

INTEGERS = "biu"
NOTHING_ALIKE = Distance(np.inf, 0.0, None, (0.0, 0.0), shapes=((), ()))


@dataclass(frozen=True)
class Two:
    """An array of a call of a and the one of b's call that is the same, and how both are brought into one shape."""

    a: str
    b: str
    changes: tuple[Change, Change] = (unchanged, unchanged)


@dataclass
class Row:
    """A submodule of a and the one of b that is the same; or a gradient.

    Attributes:
        a, b: their names; "" for the modules themselves.
        kinds: the names of their classes; "gradient" for a gradient.
        how: how it is known that they are the same: "name", "weights", "numbers" or "order".
        inputs, output: how far each pair of arrays is apart; of several, the one furthest beyond its bound.
        places: of the two calls, in the runs in float64.
        verdict: "agrees", "differs", "less precise" (in its own type alone), "follows" from its inputs or from
            submodules of its own, "unsure" of what belongs together by order and shape alone, or "elsewhere": another
            number, although what the whole returns agrees.
        given, returned: which arrays were compared.
        gradients: where it gets the gradient that it should and passes on another: those that differ, in words.
        backward: where outputs agree, and gradients do not: "passes" the gradient that it should, "gets another",
            or None where neither is known.
        unpaired: what both return and is not compared, because it has other shapes, in words.
    """

    a: str
    b: str
    kinds: tuple[str, str]
    how: str
    inputs: Distance | None
    output: Distance
    places: tuple[int, int] = (-1, -1)
    verdict: str = "agrees"
    given: list[Two] = field(default_factory=list)
    returned: list[Two] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    backward: str | None = None
    unpaired: str = ""

    @property
    def label(self) -> str:
        names = [name or "the module itself" for name in (self.a, self.b)]
        return names[0] if names[0] == names[1] else f"{names[0]} (a), {names[1]} (b)"


class Lookup:
    """A recording, and for each call of its float64 run the same call of its other runs."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.calls = recording, recording.exact.calls
        self.turns = numbered([call.name for call in self.calls])
        self.names = {i: key for key, i in self.turns.items()}
        self.own, self.moved = (self.aligned(run) for run in (recording.own, recording.moved))

    def turn(self, place: int) -> tuple[str, int]:
        """The name of a call, and which of its calls it is."""
        return self.names[place]

    def aligned(self, run: Run | None) -> list[Call | None]:
        places = {} if run is None else numbered([call.name for call in run.calls])
        found: list[Call | None] = [None] * len(self.calls)
        for key, i in self.turns.items():
            if run is not None and key in places:
                found[i] = run.calls[places[key]]
        return found

    def part(self, i: int, part: str) -> tuple[Arrays, Arrays, Arrays | None]:
        """The inputs or the outputs of a call, or their gradients, in each run."""
        own, moved = self.own[i], self.moved[i]
        return getattr(self.calls[i], part), getattr(own, part, {}), getattr(moved, part, None)


def kind_of(x: np.ndarray) -> str:
    return "i" if x.dtype.kind in INTEGERS else x.dtype.kind


def apart(sides: tuple[Lookup, Lookup], places: tuple[int, int], part: str, two: Two) -> Distance:
    """How far two arrays of two calls are apart."""
    measures = [
        measure(side.recording, *side.part(place, part), name).changed(change)
        for side, place, name, change in zip(sides, places, (two.a, two.b), two.changes, strict=True)
    ]
    return distance(*measures)


def paired(sides: tuple[Lookup, Lookup], places: tuple[int, int], part: str) -> list[tuple[Two, Distance]]:
    """The arrays of two calls that are the same: those of one name, and of the others each with the nearest.

    Names say what is what where both calls have them, as parameters of equal names do. Else two arrays that hold the
    same numbers are the same, whatever their places are.
    """
    ours, theirs = (getattr(side.calls[i], part) for side, i in zip(sides, places, strict=True))
    found: list[tuple[Two, Distance]] = []

    def nearest(a: str, b: str) -> tuple[Two, Distance] | None:
        x, y = ours[a], theirs[b]
        if kind_of(x) != kind_of(y):
            return None
        ways = [Two(a, b, change) for change in changes(x.shape, y.shape)]
        told = ((two, apart(sides, places, part, two)) for two in ways)
        return min(told, key=lambda pair: pair[1].ratio, default=None)

    left, right = list(ours), list(theirs)
    for name in [name for name in left if name in right and not name.partition(".")[0].isdecimal()]:
        two = nearest(name, name) if name else None
        if two is not None:
            found.append(two)
            left.remove(name)
            right.remove(name)
    near = [two for a in left for b in right if (two := nearest(a, b)) is not None]
    # Of equally near ones, those of one place.
    for two, told in sorted(
        near, key=lambda pair: (pair[1].ratio, abs(left.index(pair[0].a) - right.index(pair[0].b)))
    ):
        if two.a in left and two.b in right:
            found.append((two, told))
            left.remove(two.a)
            right.remove(two.b)
    order = list(ours)
    return sorted(found, key=lambda pair: order.index(pair[0].a))


def first_outputs(sides: tuple[Lookup, Lookup], i: int, j: int) -> Distance | None:
    """How far the first outputs of two calls are apart, where they can be the same and hold numbers."""
    outputs = [next(iter(side.calls[n].outputs.items()), None) for side, n in zip(sides, (i, j), strict=True)]
    if any(x is None or x[1].dtype.kind != "f" or not x[1].any() for x in outputs):
        return None
    (a, x), (b, y) = outputs  # type: ignore[misc] - None was left out
    ways = [Two(a, b, change) for change in changes(x.shape, y.shape)]
    return min((apart(sides, (i, j), "outputs", two) for two in ways), key=lambda far: far.ratio, default=None)


def unlike(calls: tuple[Call, Call], given: list[tuple[Two, Distance]]) -> Iterator[str]:
    """The numbers that both modules take under one name, of which one got none, or others of another shape.

    Masks may have any shape, and may be left out where a module makes its own.
    """
    paired_up = [{two.a for two, _ in given}, {two.b for two, _ in given}]
    for n, call in enumerate(calls):
        other = calls[1 - n]
        for name, x in call.inputs.items():
            if x.dtype.kind != "f" or name in paired_up[n] or "mask" in name or name.partition(".")[0].isdecimal():
                continue
            if (name in other.inputs and n == 0) or (name not in other.inputs and name in other.parameters):
                yield name


def row_of(sides: tuple[Lookup, Lookup], match: Match) -> Row | None:
    """The verdict on two calls by themselves; None where one returns no array."""
    places = match.a, match.b
    calls = sides[0].calls[match.a], sides[1].calls[match.b]
    given, returned = (paired(sides, places, part) for part in ("inputs", "outputs"))
    given += [(Two(name, name), NOTHING_ALIKE) for name in unlike(calls, given)]
    if not calls[0].outputs or not calls[1].outputs:
        return None
    done = {two.a for two, _ in returned}, {two.b for two, _ in returned}
    first = next(iter(calls[0].outputs)), next(iter(calls[1].outputs))
    for a, b in dict.fromkeys([*((name, name) for name in calls[0].outputs if not name.isdecimal()), first]):
        # What stands in one place, and of which neither can be the other.
        if b in calls[1].outputs and a not in done[0] and b not in done[1]:
            shapes = calls[0].outputs[a].shape, calls[1].outputs[b].shape
            returned.append((Two(a, b), replace(NOTHING_ALIKE, shapes=shapes)))
    if not returned:
        return None
    worst = [
        max((far for _, far in part), key=lambda x: (x.ratio, x.less_precise or ""))
        for part in (given, returned)
        if part
    ]
    done = {two.a for two, _ in returned}, {two.b for two, _ in returned}
    pairs_of = [[two for two, told in part if told.shapes is None] for part in (given, returned)]
    return Row(
        calls[0].name,
        calls[1].name,
        (calls[0].kind, calls[1].kind),
        match.how,
        worst[0] if given else None,
        worst[-1],
        places,
        given=pairs_of[0],
        returned=pairs_of[1],
        unpaired=in_other_shapes(calls, done),
    )


def in_other_shapes(calls: tuple[Call, Call], paired_up: tuple[set[str], set[str]]) -> str:
    """The numbers that both calls return, and of which none of one can be one of the other, in words."""
    left = [
        ", ".join(f"{name} {x.shape}" for name, x in call.outputs.items() if x.dtype.kind == "f" and name not in names)
        for call, names in zip(calls, paired_up, strict=True)
    ]
    return f"{left[0]} in a, {left[1]} in b" if all(left) else ""


def gradient_apart(sides: tuple[Lookup, Lookup], row: Row, part: str, two: Two) -> Distance | None:
    """How far two gradients of two calls are apart, one that is left out as 0; None where both are."""
    measures = []
    if all(
        name not in side.part(place, f"{part}_grads")[0]
        for side, place, name in zip(sides, row.places, (two.a, two.b), strict=True)
    ):
        return None
    for side, place, name, change in zip(sides, row.places, (two.a, two.b), two.changes, strict=True):
        x = side.part(place, f"{part}s")[0][name]
        exact, own, moved = (
            None if run is None else {name: run.get(name, np.zeros(x.shape))}
            for run in side.part(place, f"{part}_grads")
        )
        measures.append(measure(side.recording, exact or {}, own or {}, moved, name).changed(change))
    return distance(*measures)


def gradients(a: Recording, b: Recording, names: Names) -> Iterator[Row]:
    """The gradients that both sides have: of the inputs, and of the weights in the axes of b."""
    for name in a.exact.input_grads:
        runs = [[run and run.input_grads for run in (side.exact, side.own, side.moved)] for side in (a, b)]
        if all(part is None or name in part for side in runs for part in side):
            measures = [measure(side, *part, name) for side, part in zip((a, b), runs, strict=True)]  # type: ignore
            yield gradient_row(name, name, "input", distance(*measures))
    found = pairs(a, b, names, need_all=False)
    for one in fused(a, b, ({pair.a for pair in found}, {pair.b for pair in found})):
        row = fused_row(a, b, one)
        if row is not None:
            yield row
    for pair in found:
        measures = [known(side, key, pair if side is a else None) for side, key in ((a, pair.a), (b, pair.b))]
        if all(x is not None for x in measures):
            yield gradient_row(pair.a, pair.b, "weight", distance(*measures))  # type: ignore[arg-type]


def known(recording: Recording, name: str, pair: Pair | None) -> Known | None:
    """The gradient of a weight, moved to the axes of its partner."""
    x = recording.exact.weight_grads.get(name)
    if x is None:
        return None
    x = np.asarray(x, np.float64)  # mostly as it is
    x = x if pair is None else pair.move(x)
    return Known(x, x, None, recording.probe, recording.weight_errors[name])


def fused_row(a: Recording, b: Recording, one: Fused) -> Row | None:
    """The gradients of a weight and of its parts on the other side."""
    whole, parts = (a, b) if one.side == "a" else (b, a)
    names = [name for name, _ in one.parts]
    grads = whole.exact.weight_grads.get(one.whole), parts.exact.weight_grads
    if grads[0] is None or any(name not in grads[1] for name in names):
        return None
    x, y = one.whole_of(grads[0]), one.joined(grads[1])
    errors = np.max([parts.weight_errors[name] for name in names], 0)
    measures = [
        Known(x, x, None, whole.probe, whole.weight_errors[one.whole]),
        Known(y, y, None, parts.probe, (float(errors[0]), float(errors[1]))),
    ]
    told = [one.whole, ", ".join(names)]
    if one.side == "b":
        measures, told = measures[::-1], told[::-1]
    return gradient_row(told[0], told[1], "weight", distance(*measures))


def gradient_row(a: str, b: str, of: str, far: Distance) -> Row:
    verdict = "agrees" if far.ok and not far.less_precise else "differs" if not far.ok else "less precise"
    return Row(a, b, (f"gradient of the {of}", f"gradient of the {of}"), "name", None, far, verdict=verdict)
