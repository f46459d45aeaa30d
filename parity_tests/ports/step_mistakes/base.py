"""A mistake with a cache, and how it is made in a view of queries and keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity_tests.ports.steps import Decoding, View

Pieces = Iterator[np.ndarray]
Change = Callable[[View], View]


@dataclass(frozen=True)
class StepMistake:
    """A mistake with a cache.

    Attributes:
        name, fix: the mistake in words, and what to do about it in one line.
        runs: the outputs of our pieces with the mistake, one run for each way of writing it.
        whole: whether a prompt of the whole sequence shows it, too.
    """

    name: str
    fix: str
    runs: Callable[[Decoding], Iterator[Pieces]]
    whole: bool = False


STEPS, PROMPT, ALL = "steps", "prompt", "all"


def attended(decoding: Decoding, change: Change, where: str, touch: Any = None) -> Pieces:
    """The pieces with another view of some: of those after the prompt, of the prompt or of all."""
    for number in range(len(decoding.plan)):
        view = decoding.view(number)
        here = where == ALL or (where == PROMPT) == (number == 0)
        yield decoding.attended(change(view) if here else view, touch if here else None)


def seen(
    name: str, fix: str, *changes: Change, where: str = STEPS, of: Callable[[Decoding], bool] = lambda _: True
) -> StepMistake:
    """A mistake in the positions of a piece, or in who sees whom; in a cache of entries, of layers of some kind."""

    def runs(decoding: Decoding) -> Iterator[Pieces]:
        return (attended(decoding, change, where) for change in changes if decoding.has_entries and of(decoding))

    return StepMistake(name, fix, runs, where != STEPS)


def queries(of: Callable[[View], Any]) -> Change:
    """Other positions of the queries."""
    return lambda view: replace(view, query_at=np.broadcast_to(of(view), view.query_at.shape))


def keys(of: Callable[[View], Any]) -> Change:
    """Other positions of the keys."""
    return lambda view: replace(view, key_at=np.broadcast_to(of(view), view.key_at.shape))


def both(query_of: Callable[[View], Any], key_of: Callable[[View], Any]) -> Change:
    return lambda view: keys(key_of)(queries(query_of)(view))


def stepped(view: View) -> np.ndarray:
    """The columns that came after the prompt, and are there."""
    return (view.piece > 0) & (view.columns < view.stop)


def in_steps(of: Callable[[View], Any]) -> Callable[[View], Any]:
    """These positions for keys that came after the prompt, their own for others."""
    return lambda view: np.where(stepped(view), of(view), view.key_at)


def offset(view: View) -> np.ndarray:
    """`c`, the place of each column in its piece."""
    return view.columns - np.searchsorted(view.piece, view.piece)


def size(view: View) -> np.ndarray:
    """`c`, how many columns came with each."""
    return np.searchsorted(view.piece, view.piece, "right") - np.searchsorted(view.piece, view.piece)


def row(view: View) -> np.ndarray:
    """`n`, the place of each query in its piece."""
    return np.arange(view.stop - view.start)
