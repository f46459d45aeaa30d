"""A small language for moving weights between layouts: `"(h k) d -> d h k"`.

Each side names the axes of an array in order; letters in parentheses share one axis, the last letter running fastest.
The two sides have the same letters, so every pattern can be read backwards, and nothing is computed: bits are moved.
`1` is an axis of one entry, `"1 e -> e"`.

Arrays of several sizes can be concatenated along one axis, `"(h k | g k | g v) d -> d h k, d g k, d g v"`, or within
each group of it, `"(g (r k | k | v)) d -> d (g r) k, d g k, d g v"`: bars on the left, commas on the right.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

Side = tuple[tuple[str, ...], ...]
BARS = re.compile(r"\(([^()]*\|[^()]*)\)")


@cache
def parse(pattern: str) -> tuple[Side, Side]:
    """Both sides of a pattern, each a tuple of axes, each axis a tuple of letters.

    Raises:
        ValueError: a pattern that does not have every letter once on each side.
    """
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(f"expected a pattern like '(h k) d -> d h k', got {pattern!r}; write it with one arrow")
    left, right = (parse_side(side, pattern) for side in sides)
    letters = sum(left, ())
    if len(set(letters)) != len(letters) or sorted(letters) != sorted(sum(right, ())):
        raise ValueError(f"expected the same letters, each once, on both sides, got {pattern!r}; complete it")
    return left, right


def parse_side(side: str, pattern: str) -> Side:
    axes: list[tuple[str, ...]] = []
    group: list[str] | None = None
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(" and group is None:
            group = []
        elif word == ")" and group is not None:
            axes.append(tuple(group))
            group = None
        elif word == "1":
            axes += [()] if group is None else []
        elif not word.isalpha():
            raise ValueError(f"expected letters and matching parentheses, got {pattern!r}; correct it")
        elif group is not None:
            group.append(word)
        else:
            axes.append((word,))
    if group is not None:
        raise ValueError(f"expected letters and matching parentheses, got {pattern!r}; correct it")
    return tuple(axes)


def reverse(pattern: str) -> str:
    """The pattern that undoes a pattern."""
    left, right = pattern.split("->")
    return f"{right.strip()} -> {left.strip()}"


def shape_of(side: Side, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one side."""
    return tuple(prod(sizes[letter] for letter in axis) for axis in side)


def solve(side: Side, shape: tuple[int, ...], known: Mapping[str, int]) -> dict[str, int]:
    """The letters' sizes that follow from a shape and the known ones; an axis with two unknown letters gives none."""
    sizes: dict[str, int] = {}
    if len(side) != len(shape):
        return sizes
    for axis, size in zip(side, shape, strict=True):
        unknown = [letter for letter in axis if letter not in known]
        rest = prod(known[letter] for letter in axis if letter in known)
        if len(unknown) == 1 and rest and size % rest == 0:
            sizes[unknown[0]] = size // rest
    return sizes


def rearrange(x: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
    """An array with the left side's axes, moved to the right side's.

    Raises:
        ValueError: an array that does not have the left side's shape.
    """
    left, right = parse(pattern)
    if x.shape != shape_of(left, sizes):
        raise ValueError(f"expected an array {shape_of(left, sizes)} for {pattern!r}, got {x.shape}; check the sizes")
    source = sum(left, ())
    order = [source.index(letter) for letter in sum(right, ())]
    split = x.reshape([sizes[letter] for letter in source]).transpose(order)
    return np.ascontiguousarray(split).reshape(shape_of(right, sizes))


@dataclass(frozen=True)
class Concatenation:
    """Several arrays concatenated along one axis of a whole.

    Attributes:
        axis: the axis of the whole.
        outer: letters before the bars in their group, for which the arrays repeat; empty if each is in one piece.
        parts: letters of each array within a group.
        patterns: a pattern for each array, from its part of the whole.
    """

    axis: int
    outer: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    patterns: tuple[str, ...]

    def solve(self, shape: tuple[int, ...], known: Mapping[str, int]) -> dict[str, int]:
        """The letters' sizes that follow from the whole's shape; the axis of concatenation gives none."""
        side = parse(self.patterns[0])[0]
        if len(side) != len(shape):
            return {}
        others = [n for n in range(len(shape)) if n != self.axis]
        return solve(tuple(side[n] for n in others), tuple(shape[n] for n in others), known)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the whole."""
        shape = list(shape_of(parse(self.patterns[0])[0], sizes))
        shape[self.axis] = self._size(self.outer, sizes) * sum(self._size(part, sizes) for part in self.parts)
        return tuple(shape)

    def split(self, x: np.ndarray, sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The arrays of a whole.

        Raises:
            ValueError: an array that does not have the whole's shape.
        """
        if x.shape != self.shape(sizes):
            raise ValueError(
                f"expected an array {self.shape(sizes)} for {self.patterns}, got {x.shape}; check the sizes"
            )
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        groups = x.reshape(*before, self._size(self.outer, sizes), -1, *after)
        arrays, start = [], 0
        for part, pattern in zip(self.parts, self.patterns, strict=True):
            end = start + self._size(part, sizes)
            piece = groups[(slice(None),) * (self.axis + 1) + (slice(start, end),)].reshape(*before, -1, *after)
            arrays.append(rearrange(piece, pattern, sizes))
            start = end
        return arrays

    def join(self, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
        """The whole made of arrays."""
        pieces = [rearrange(x, reverse(pattern), sizes) for x, pattern in zip(arrays, self.patterns, strict=True)]
        before, after = pieces[0].shape[: self.axis], pieces[0].shape[self.axis + 1 :]
        groups = [x.reshape(*before, self._size(self.outer, sizes), -1, *after) for x in pieces]
        return np.concatenate(groups, self.axis + 1).reshape(self.shape(sizes))

    def _size(self, letters: tuple[str, ...], sizes: Mapping[str, int]) -> int:
        return prod(sizes[letter] for letter in letters)


@cache
def concatenation(pattern: str) -> Concatenation | None:
    """The concatenation that a pattern with bars describes; None for a pattern without.

    Raises:
        ValueError: bars in more than one place, or not as many arrays on the right as between them.
    """
    if "|" not in pattern:
        return None
    left, _, right = pattern.partition("->")
    targets, bars = [side.strip() for side in right.split(",")], BARS.findall(left)
    if len(bars) != 1 or "|" in BARS.sub("", left) or len(bars[0].split("|")) != len(targets):
        form = "'(a | b) d -> a d, b d', as many arrays on the right as between bars in one place"
        raise ValueError(f"expected a pattern like {form}, got {pattern!r}; correct it")
    before, after = BARS.split(left)[::2]
    grouped = before.count("(") > before.count(")")
    outer = tuple(before.rpartition("(")[2].split()) if grouped else ()
    if grouped and not after.lstrip().startswith(")"):
        raise ValueError(f"expected bars last in their group, got {pattern!r}; move what follows them before them")
    parts = tuple(tuple(part.split()) for part in bars[0].split("|"))
    words = [" ".join(part) if grouped else f"({' '.join(part)})" for part in parts]
    sides = [f"{before}{word}{after}".strip() for word in words]
    patterns = tuple(f"{side} -> {target}" for side, target in zip(sides, targets, strict=True))
    for part_pattern in patterns:
        parse(part_pattern)
    axis = len(parse_side(before.rpartition("(")[0] if grouped else before, pattern))
    return Concatenation(axis, outer, parts, patterns)
