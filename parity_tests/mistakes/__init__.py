"""Planted bugs: each is one edit of the source, in one tree, and the judge must see it.

A mutant runs in a copy of the tree that lives under a name of its own in memory; nothing on disk changes. The reference
stays whole. Every mistake here is one that people really make: see the traps in the documentation. The names and the
advice are also what a judged port that has such a mistake is told.
"""

from importlib import import_module
from pkgutil import iter_modules

from parity_tests.mistakes import (
    backward,
    masks,
    norms,
    of_variants,
    packed,
    projections,
    recurrent,
    rotary,
    scores,
    shards,
    weights,
)
from parity_tests.mistakes.evidence import evidence, outcome_of
from parity_tests.mistakes.plant import SHARED, TREES, Mutant, edited, file_of, planted

__all__ = [
    "MUTANTS",
    "SHARED",
    "THEMES",
    "TREES",
    "Mutant",
    "edited",
    "evidence",
    "file_of",
    "outcome_of",
    "planted",
]

THEMES = {
    "scores": scores.MUTANTS,
    "masks": masks.MUTANTS,
    "shards": shards.MUTANTS,
    "weights": weights.MUTANTS,
    "projections": projections.MUTANTS,
    "recurrent": recurrent.MUTANTS,
    "packed": packed.MUTANTS,
    "norms": norms.MUTANTS,
    "rotary": rotary.MUTANTS,
    "backward": backward.MUTANTS,
    **{
        info.name: import_module(f"{of_variants.__name__}.{info.name}").MUTANTS
        for info in iter_modules(of_variants.__path__)
    },
}
MUTANTS = tuple(mutant for theme in THEMES.values() for mutant in theme)
