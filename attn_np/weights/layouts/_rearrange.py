"""A small language for moving weights between layouts: `"(h k) d -> d h k"`.

Each side names the axes of an array in order; letters in parentheses share one axis, the last letter running fastest.
The two sides hold the same letters, so every pattern can be read backwards, and nothing is computed: bits are moved.
"""

from collections.abc import Mapping
from functools import cache
from math import prod

import numpy as np

__all__ = ["parse", "rearrange", "reverse", "shape_of", "solve"]

Side = tuple[tuple[str, ...], ...]


@cache
def parse(pattern: str) -> tuple[Side, Side]:
    """Both sides of a pattern, each a tuple of axes, each axis a tuple of letters.

    Raises:
        ValueError: a pattern that does not move every letter from one side to the other.
    """
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(f"expected a pattern like '(h k) d -> d h k', got {pattern!r}; write it with one arrow")
    left, right = (parse_side(side, pattern) for side in sides)
    if sorted(sum(left, ())) != sorted(set(sum(right, ()))):
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
    """What a shape says about the letters of one side, given some; an axis with two unknown letters says nothing."""
    found: dict[str, int] = {}
    if len(side) != len(shape):
        return found
    for axis, size in zip(side, shape, strict=True):
        unknown = [letter for letter in axis if letter not in known]
        rest = prod(known[letter] for letter in axis if letter in known)
        if len(unknown) == 1 and rest and size % rest == 0:
            found[unknown[0]] = size // rest
    return found


def rearrange(x: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Move an array from the left side's axes to the right side's.

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
