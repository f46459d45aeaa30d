"""Weights that one side holds as one array and the other as several, such as the projections of attention.

They are known by their numbers: the parts, one after the other along an axis of the whole, are the whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from parity_tests.ports.modules.aligned import Change
from parity_tests.ports.modules.recordings import Arrays, Recording


@dataclass(frozen=True)
class Fused:
    """A weight of one side and its parts on the other.

    Attributes:
        side: "a" or "b", which holds it whole.
        whole: its name.
        parts: the names of its parts, in order, each with what brings it to two axes, the first of which is divided.
        turned: the whole is divided along its last axis.
    """

    side: str
    whole: str
    parts: tuple[tuple[str, Change], ...]
    turned: bool

    def joined(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The parts of some arrays, such as gradients, as one in the axes of `whole_of`."""
        return np.concatenate([change(arrays[name]) for name, change in self.parts])

    def whole_of(self, x: np.ndarray) -> np.ndarray:
        return flat(x, self.turned)


def flat(x: np.ndarray, turned: bool) -> np.ndarray:
    """An array with two axes, of which the first is the first one, or the last one if it is turned."""
    return x.reshape(-1, x.shape[-1]).T if turned else x.reshape(x.shape[0], -1)


def forms(x: np.ndarray) -> Iterator[Change]:
    """The ways to see an array as rows: heads may have an axis of their own, and rows may be columns."""
    yield lambda x: flat(x, turned=False)
    yield lambda x: flat(x, turned=True)
    if x.ndim > 2:
        yield lambda x: x.reshape(x.shape[0], -1).T
        yield lambda x: x.reshape(-1, x.shape[-1])
    if x.ndim == 2:
        yield lambda x: x.reshape(-1, 1)


def fused(a: Recording, b: Recording, taken: tuple[set[str], set[str]]) -> Iterator[Fused]:
    """The weights without a partner that are several of the other side, by their numbers."""
    left = [
        {name: x for name, x in side.weights.items() if name not in names and x.size > 1}
        for side, names in zip((a, b), taken, strict=True)
    ]
    for side, wholes, parts in (("a", left[0], left[1]), ("b", left[1], left[0])):
        for name, x in wholes.items():
            for turned in (False, True)[: x.ndim]:
                found = parts_of(flat(x, turned), parts)
                if len(found) > 1:
                    yield Fused(side, name, found, turned)
                    break


def parts_of(whole: np.ndarray, parts: Arrays) -> tuple[tuple[str, Change], ...]:
    """The arrays that one after the other are the rows of a whole; none where they are not all of it."""
    found: list[tuple[str, Change]] = []
    start = 0
    while start < len(whole):
        rest = whole[start:]
        fits = (
            (name, change, rows)
            for name, x in parts.items()
            if name not in {known for known, _ in found}
            for change in forms(x)
            if (rows := change(x)).shape[1] == whole.shape[1] and len(rows) <= len(rest)
            if np.array_equal(rest[: len(rows)], rows)
        )
        name, change, rows = next(fits, ("", None, None))
        if change is None or rows is None:
            return ()
        found.append((name, change))
        start += len(rows)
    return tuple(found)
