"""Rows of a comparison: two calls that are the same, or two gradients, and how far they are apart."""

from collections.abc import Iterator
from dataclasses import dataclass

from parity_tests.ports.modules.bounds import Distance, distance, measure
from parity_tests.ports.modules.match import Match, numbered
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
        verdict: "agrees", "differs", "less precise" (in its own type alone), "follows" from its inputs or from
            submodules of its own, or "elsewhere": another number, although what the whole returns agrees.
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


class Lookup:
    """A recording, and for each call of its float64 run the same call of its other runs."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.calls = recording, recording.exact.calls
        self.turns = numbered([call.name for call in self.calls])
        self.own, self.moved = (self.aligned(run) for run in (recording.own, recording.moved))

    def turn(self, place: int) -> tuple[str, int]:
        """The name of a call, and which of its calls it is."""
        return next(key for key, i in self.turns.items() if i == place)

    def aligned(self, run: Run | None) -> list[Call | None]:
        places = {} if run is None else numbered([call.name for call in run.calls])
        found: list[Call | None] = [None] * len(self.calls)
        for key, i in self.turns.items():
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
        what = f"gradient of the {'input' if pair is None else 'weight'}"
        return Row(name, other, (what, what), "name", None, apart, verdict=verdict)

    found = [row(name, name, "input_grads") for name in a.exact.input_grads]
    found += [row(pair.a, pair.b, "weight_grads", pair) for pair in pairs(a, b, names, need_all=False)]
    yield from (x for x in found if x is not None)
