"""Arrays of two frameworks that hold the same numbers under other shapes."""

from collections.abc import Callable, Iterator
from itertools import accumulate, permutations
from math import prod
from operator import mul

import numpy as np

Change = Callable[[np.ndarray], np.ndarray]
Shape = tuple[int, ...]
# Above this many axes no other order is tried.
MOST_AXES = 5


def unchanged(x: np.ndarray) -> np.ndarray:
    return x


def changes(one: Shape, other: Shape) -> Iterator[tuple[Change, Change]]:
    """How arrays of two shapes can be brought into one, the likeliest way first; none where they hold other numbers.

    Axes may be merged or split, `b t h d` and `b t (h d)`; axes of size 1 may be left out; rows of a batch that are all
    the same may stand once, `1 t d` and `b t d`; and axes may stand in another order.
    """
    if one == other:
        yield unchanged, unchanged
        return
    if regrouped(one, other):
        yield unchanged, lambda y: y.reshape(one)
        return
    whole = lambda shape: lambda x: np.broadcast_to(x, shape)  # noqa: E731
    if repeats(one, other):
        yield whole(other), unchanged
    elif repeats(other, one):
        yield unchanged, whole(one)
    for axes in orders(one):
        moved = tuple(one[n] for n in axes)
        if regrouped(moved, other):
            yield lambda x, axes=axes: x.transpose(axes), lambda y, moved=moved: y.reshape(moved)
    for axes in orders(other):
        moved = tuple(other[n] for n in axes)
        if len(one) < len(other) and regrouped(moved, one):
            yield lambda x, moved=moved: x.reshape(moved), lambda y, axes=axes: y.transpose(axes)


def orders(shape: Shape) -> Iterator[Shape]:
    """The other orders of the axes."""
    if len(shape) <= MOST_AXES:
        yield from (axes for axes in permutations(range(len(shape))) if axes != tuple(range(len(shape))))


def regrouped(one: Shape, other: Shape) -> bool:
    """Whether one shape merges neighbouring axes of the other."""
    a, b = (set(accumulate((n for n in shape if n != 1), mul)) for shape in (one, other))
    return prod(one) == prod(other) and (a <= b or b <= a)


def repeats(one: Shape, other: Shape) -> bool:
    """Whether the second shape is the first with more rows in front."""
    bare = one[next((i for i, n in enumerate(one) if n != 1), len(one)) :]
    return bool(bare) and len(one) <= len(other) and prod(one) < prod(other) and other[-len(bare) :] == bare
