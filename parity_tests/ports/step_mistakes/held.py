"""Caches that hold other entries than they should: rounded, exchanged, of other sequences."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.ports.step_mistakes.base import ALL, STEPS, Pieces, StepMistake, attended, both, in_steps
from parity_tests.ports.steps import Arrays, Decoding, View

NARROW = ("bfloat16", "float16")


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(DTYPES[dtype]).astype(np.float64)


def subsets(decoding: Decoding) -> list[tuple[str, ...]]:
    """All arrays of a cache, and each by itself."""
    names = tuple(decoding.config.cache_axes()) or ("state",)
    return [names, *((name,) for name in names if len(names) > 1)]


def narrowed(decoding: Decoding, dtype: str) -> Iterator[Pieces]:
    """Runs with some of the cached arrays in a narrow type; new entries may be seen before they are rounded."""
    for names in subsets(decoding):
        if not decoding.has_entries:
            yield decoding.layered(touch=lambda _, __, x, names=names: changed(x, names, lambda z: rounded(z, dtype)))
            continue
        for own in (False, True):

            def touch(view: View, arrays: Arrays, names: tuple[str, ...] = names, own: bool = own) -> Arrays:
                old = view.columns[: next(iter(arrays.values())).shape[1]] < (view.stop if own else view.start)
                return {
                    n: np.where(old.reshape(-1, *[1] * (x.ndim - 2)), rounded(x, dtype), x) if n in names else x
                    for n, x in arrays.items()
                }

            yield attended(decoding, lambda v: v, ALL, touch)


def changed(arrays: Arrays, names: tuple[str, ...], change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    return {n: change(x) if n in names else x for n, x in arrays.items()}


def batch_axes(decoding: Decoding) -> dict[str, int]:
    """Which axis of each cached array counts the sequences."""
    axes = decoding.config.cache_axes() or {"state": "l b e"}
    return {name: letters.split().index("b") for name, letters in axes.items()}


def first_rows(x: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(np.take(x, [0], axis), x.shape)


# Of a column: how often it was exchanged, by its piece and the step that reads it.
EXCHANGES: tuple[Callable[[np.ndarray, int], np.ndarray], ...] = (
    lambda piece, number: number - np.maximum(piece, 1),
    lambda piece, number: number - piece,
    lambda piece, number: piece == 0,
    lambda piece, number: piece < number,
)


def reordered(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which cached sequences change places, in every step or once; of all arrays or of some."""
    axes = batch_axes(decoding)
    if not decoding.has_entries:
        for once in (False, True):
            yield decoding.layered(
                touch=lambda i, _, x, once=once: {
                    n: np.flip(z, axes[n]) if not (once and i) else z for n, z in x.items()
                }
            )
            yield decoding.layered(
                touch=lambda i, _, x, once=once: {
                    n: np.flip(z, axes[n]) if i and not (once and i > 1) else z for n, z in x.items()
                }
            )
        return
    for times, names in product(EXCHANGES, subsets(decoding)):

        def touch(view: View, arrays: Arrays, times: Any = times, names: tuple[str, ...] = names) -> Arrays:
            return {n: np.where(odd(view, times, x), x[::-1], x) if n in names else x for n, x in arrays.items()}

        yield attended(decoding, lambda v: v, STEPS, touch)


def odd(view: View, times: Any, x: np.ndarray) -> np.ndarray:
    """`c` and axes of 1, the cached columns that were exchanged an odd number of times."""
    piece = view.piece[: x.shape[1]]
    return ((times(piece, view.number) % 2 == 1) & (piece < view.number)).reshape(-1, *[1] * (x.ndim - 2))


def exchanged(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which two cached arrays of one shape change places, in every step or where they are read."""
    names = [*decoding.config.cache_axes()]
    shapes = {x.shape for x in decoding.empty().arrays.values()}
    for times in (EXCHANGES[1], EXCHANGES[3]) if decoding.has_entries and len(names) == 2 and len(shapes) == 1 else ():

        def touch(view: View, arrays: Arrays, times: Any = times) -> Arrays:
            a, b = (arrays[name] for name in names)
            here = odd(view, times, a)
            return dict(zip(names, (np.where(here, b, a), np.where(here, a, b)), strict=True))

        yield attended(decoding, lambda v: v, STEPS, touch)


def twice(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which the cache holds the last position of the prompt twice; what follows may count both."""

    def again(view: View) -> View:
        return replace(view, visible=view.visible | (view.columns == len(view.columns) - 1))

    def counting(view: View) -> View:
        return both(lambda v: v.query_at + 1, in_steps(lambda v: v.key_at + 1))(again(view))

    def touch(view: View, arrays: Arrays) -> Arrays:
        last = int(np.sum(view.piece == 0)) - 1
        count = {name: len(view.columns) - x.shape[1] for name, x in arrays.items()}
        return {n: np.concatenate([x, *[x[:, last : last + 1]] * count[n]], 1) for n, x in arrays.items()}

    for change in (again, counting) if decoding.has_entries else ():
        yield attended(decoding, change, STEPS, touch)


def of_first_row(decoding: Decoding) -> Iterator[Pieces]:
    """Runs in which every sequence has the cache of the first."""
    axes = batch_axes(decoding)
    if not decoding.has_entries:
        yield decoding.layered(touch=lambda _, __, x: {n: first_rows(z, axes[n]) for n, z in x.items()})
        return
    for own in (True, False):

        def touch(view: View, arrays: Arrays, own: bool = own) -> Arrays:
            piece = view.piece[: next(iter(arrays.values())).shape[1]]
            here = (piece <= view.number) if own else (piece < view.number)
            return {n: np.where(here.reshape(-1, *[1] * (x.ndim - 2)), x[:1], x) for n, x in arrays.items()}

        yield attended(decoding, lambda v: v, STEPS, touch)


ENTRIES = (
    *(
        StepMistake(
            f"cache in {dtype}: keys, values or states are rounded to 16 bits",
            "cache in the type of the layer, states in float32 or wider",
            lambda decoding, dtype=dtype: narrowed(decoding, dtype),
        )
        for dtype in NARROW
    ),
    StepMistake(
        "batch rows of the cache are in another order than those of the step",
        "reorder the cache with the sequences (beams), all of its arrays, once",
        reordered,
    ),
    StepMistake(
        "cached keys and values are exchanged",
        "return the cache in the order in which the next step takes it: keys, values",
        exchanged,
    ),
    StepMistake(
        "the last position of the prompt is in the cache twice",
        "begin the steps with the position after the prompt: its last one is in the cache already",
        twice,
    ),
    StepMistake("the cache of the first batch row used for all rows", "cache each sequence by itself", of_first_row),
)
