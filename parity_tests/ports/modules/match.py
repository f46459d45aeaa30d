"""Which submodule of one side is which of the other."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from parity_tests.ports.modules.names import Names, translated
from parity_tests.ports.modules.recordings import Call, Run

# A call by the place in its run.
Same = Callable[[int, int], bool]


@dataclass(frozen=True)
class Match:
    """A call of a and the call of b that is the same, by their places, and how that is known.

    Attributes:
        how: "name", "weights", "numbers" or "order".
    """

    a: int
    b: int
    how: str


def matches(a: Run, b: Run, names: Names, same: Same, weights: Mapping[str, str]) -> list[Match]:
    """The calls of both sides that are the same, in the order of a.

    First by name: the map's, or equal ones; and the module itself. Then by weights: what holds the same weights, and no
    others. Then by numbers: what gives the same output in float64 is the same for this comparison. What is left is
    matched by order, between the calls that are known, where the shapes of inputs and outputs are equal.

    Args:
        weights: the weights of a to those of b.
    """
    found = [Match(i, j, "name") for i, j in by_name(a.calls, b.calls, names)]
    found += [Match(i, j, "weights") for i, j in by_weights(a.calls, b.calls, weights, found)]
    ours, theirs = {match.a for match in found}, {match.b for match in found}
    for i in range(len(a.calls)):
        if i not in ours:
            j = next((j for j in range(len(b.calls)) if j not in theirs and same(i, j)), None)
            if j is not None:
                found.append(Match(i, j, "numbers"))
                theirs.add(j)
    found += [Match(i, j, "order") for i, j in by_order(a.calls, b.calls, found)]
    return sorted(found, key=lambda match: match.a)


def by_weights(
    a: Sequence[Call], b: Sequence[Call], weights: Mapping[str, str], known: Sequence[Match]
) -> list[tuple[int, int]]:
    """Calls of modules that hold the same weights and no others, where only one module of each side does."""
    taken = {m.a for m in known}, {m.b for m in known}
    owners = []
    for calls, names, done in ((a, weights, taken[0]), (b, weights.values(), taken[1])):
        held: dict[frozenset[str], list[str]] = {}
        for owner in dict.fromkeys(call.name for i, call in enumerate(calls) if i not in done and call.name):
            own = frozenset(x for x in names if x.startswith(f"{owner}."))
            held.setdefault(own, []).append(owner)
        owners.append({own: found[0] for own, found in held.items() if own and len(found) == 1})
    places = [numbered([call.name for call in calls]) for calls in (a, b)]
    found = []
    for own, name in owners[0].items():
        partner = owners[1].get(frozenset(weights[x] for x in own))
        if partner is None:
            continue
        turns = (turn for at, turn in places[0] if at == name)
        found += [(places[0][name, turn], places[1][partner, turn]) for turn in turns if (partner, turn) in places[1]]
    return found


def by_name(a: Sequence[Call], b: Sequence[Call], names: Names) -> list[tuple[int, int]]:
    """Calls with the same name, the first call of one with the first of the other."""
    places = numbered([call.name for call in b])
    turns = numbered([translated(call.name, names)[0] if call.name else "" for call in a])
    return [(i, places[key]) for key, i in turns.items() if key in places]


def numbered(names: Sequence[str]) -> dict[tuple[str, int], int]:
    """The places of names, each with which of the calls of this name it is."""
    seen: Counter[str] = Counter()
    found = {}
    for i, name in enumerate(names):
        found[name, seen[name]] = i
        seen[name] += 1
    return found


def by_order(a: Sequence[Call], b: Sequence[Call], known: Sequence[Match]) -> list[tuple[int, int]]:
    """Calls of the same shapes in the same order, between two neighbouring calls that are known."""
    found, start = [], (0, 0)
    anchors = [(m.a, m.b) for m in sorted(known, key=lambda m: m.a)]
    for end in [*anchors, (len(a), len(b))]:
        if end[1] < start[1]:
            continue  # the two sides call these in another order
        taken = {m.a for m in known}, {m.b for m in known}
        left = [i for i in range(start[0], end[0]) if i not in taken[0]]
        right = [j for j in range(start[1], end[1]) if j not in taken[1]]
        blocks = SequenceMatcher(None, [shapes(a[i]) for i in left], [shapes(b[j]) for j in right], False)
        for block in blocks.get_matching_blocks():
            found += [(left[block.a + n], right[block.b + n]) for n in range(block.size)]
        start = (end[0] + 1, end[1] + 1)
    return found


def shapes(call: Call) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The shapes of the first input and of the first output."""
    return tuple(next((x.shape for x in part.values()), None) for part in (call.inputs, call.outputs))  # type: ignore
