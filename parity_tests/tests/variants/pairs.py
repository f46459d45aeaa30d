"""Configs in which every two options meet: a covering design over the values that the examples of a variant use.

Most mistakes with options need two of them (Kuhn, Wallace and Gallo 2004). All combinations would be too many; a few
dozen configs hold every pair.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.cases import given
from parity_tests.tests.inputs import Arrays, random_inputs

TRIES = 40  # configs that are drawn for each that is kept


def values(variant: str) -> dict[str, list[Any]]:
    """The values of each field over the variant's examples, and every form of a recurrence; fields with one value are
    left out.
    """
    forms = getattr(contract.get(variant), "FORMS", ())
    found: dict[str, list[Any]] = {"form": list(forms)} if forms else {}
    for config in contract.examples(variant).values():
        for name, value in config.as_dict().items():
            known = found.setdefault(name, [])
            if value not in known:
                known.append(value)
    return {name: known for name, known in found.items() if len(known) > 1}


def pairs(config: Config, fields: dict[str, list[Any]]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Every two fields with their values."""
    own = [(name, repr(getattr(config, name))) for name in fields]
    return set(combinations(own, 2))


def drawn(variant: str, fields: dict[str, list[Any]], rng: np.random.Generator) -> Config:
    """An example in which some fields have values of other examples, as far as they fit."""
    examples = list(contract.examples(variant).values())
    config = examples[rng.integers(len(examples))]
    for name in rng.permutation(list(fields)):
        value = fields[name][rng.integers(len(fields[name]))]
        if value == getattr(config, name):
            continue
        try:
            config = replace(config, **{name: value})
        except (TypeError, ValueError):
            continue
    return config


def covering(variant: str, most: int | None = None) -> Iterator[tuple[str, Config]]:
    """Configs, each with the most pairs that none before had, until draws bring no new ones."""
    fields, rng = values(variant), np.random.default_rng(len(variant))
    seen = set().union(*(pairs(config, fields) for config in contract.examples(variant).values()))
    number = 0
    while most is None or number < most:
        tried = [drawn(variant, fields, rng) for _ in range(TRIES)]
        best = max(tried, key=lambda config: len(pairs(config, fields) - seen))
        if not pairs(best, fields) - seen:
            return
        seen |= pairs(best, fields)
        number += 1
        yield f"pairs {number}", best


def any_call(config: Config, rng: np.random.Generator) -> Arrays:
    """What must be given and some of what may be, in sizes of any kind: one sequence, one position, more queries than
    keys; a query that sees nothing and keys that nobody sees.
    """
    least, most = given(config, "plain"), given(config, "full")
    names = [name for name in most if name in least or rng.random() < 0.7]
    if len(names) < len(most) and rng.random() < 0.3:
        names = list(least)
    sizes = {"b": int(rng.choice([1, 2, 3])), "t": int(rng.choice([1, 2, 3, 4, 6, 9])), "s": int(rng.choice([1, 4, 7]))}
    inputs = random_inputs(config, names, **sizes)
    for name, x in inputs.items():
        if config.arguments()[name].kind == "mask" and x.ndim > 2:
            x[0, ..., rng.integers(x.shape[-2]), :] = x[-1, ..., rng.integers(x.shape[-1])] = False
    return {n: narrow(x, rng) if config.arguments()[n].kind in ("mask", "bias") else x for n, x in inputs.items()}


def narrow(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask or a bias of pairs, every second time with some axes of length 1 or without the first ones."""
    if x.ndim < 3 or rng.random() < 0.5:
        return x
    at = tuple(slice(1) if rng.random() < 0.4 else slice(None) for _ in x.shape)
    return x[at] if rng.random() < 0.5 else x[at][(0,) * int(rng.integers(1, x.ndim))]
