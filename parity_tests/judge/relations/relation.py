"""What a relation is: what must agree in one or two calls of a layer."""

from collections.abc import Callable, Iterator
from typing import Any

from parity_tests.judge.calls import Call, Subject

Pair = tuple[str, Any, Any]
Relation = Callable[[Subject, Call], Iterator[Pair]]


def relation(table: dict[str, Relation]) -> Callable[[Relation], Relation]:
    """Put into a table; a relation gives what must agree: a name and two arrays, or nothing where it does not apply."""

    def put(function: Relation) -> Relation:
        table[function.__name__] = function
        return function

    return put


def both(got: dict[str, Any], want: dict[str, Any]) -> Iterator[Pair]:
    for name, x in want.items():
        yield name, got[name], x
