"""Mistakes in other forms of the same layer, by fields of a config that change how it computes, and not what; and
gradients that stop.

A mistake in the source is planted in each form: an implementation of one's own need not take that of the reference.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from parity_tests.explain.catalogue import Mistake
from parity_tests.explain.verdicts import Setup
from parity_tests.judge.candidates import scoped

# Each field with the values to try; chunks of two positions hand a state on at almost every length.
FORMS: tuple[dict[str, Any], ...] = (
    {"form": "recurrent"},
    {"form": "parallel"},
    {"form": "chunked", "chunk_size": 2},
    {"absorbed": True},
    {"absorbed": False},
)


def other_forms(config: Any) -> Iterator[Any]:
    """The configs of the same layer in each other form."""
    for fields in FORMS:
        if set(fields) <= set(config.fields()) and any(getattr(config, n) != x for n, x in fields.items()):
            try:
                yield replace(config, **fields)
            except ValueError:
                continue


def in_form(mistake: Mistake, config: Any) -> Mistake:
    """A mistake made in another form of the same layer."""

    def made(setup: Setup) -> Setup | None:
        return mistake.made(replace(setup, case=replace(setup.case, given=config)))

    return replace(mistake, made=made)


STOPPED = "no gradient through {}"
THROUGH = "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() where {} is made"


def stops(whole: dict[str, Any]) -> list[Mistake]:
    """A gradient that goes no further than one array, for each whose gradient the backward pass records."""
    forward = {name for name in whole if scoped(name) in whole}
    return [
        Mistake(STOPPED.format(name), THROUGH.format(name), partial(replace, stopped=name), True, rank=3)
        for name in sorted(forward)
    ]
