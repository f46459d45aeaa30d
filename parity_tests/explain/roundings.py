"""Is it a smaller type? Whether a candidate's errors are those that the same roundings make in the reference.

What rounds more than was promised has wide bounds, which hold small errors of any kind. So that a candidate lies within
them says nothing. Roundings are named only by what they do: errors up and down, of the type's size, and at the same
places in the same direction as in the reference that rounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT, Precision, roundings
from parity_tests.explain.verdicts import Setup, exact
from parity_tests.judge.judging import reference

# Roundings of one type that are made in another order, or of which some are left out, still have half of their errors
# in common. Errors that have nothing to do with them have a correlation of about 1/sqrt(n).
CORRELATION = 0.5
# How many standard deviations chance is allowed: more are met once in 30,000 times.
DEVIATIONS = 4.0
CERTAIN = 0.99  # of a few numbers only such a correlation says anything
# How many times larger or smaller the errors may be. The order of a sum and the places where a type is left and entered
# change them by less than this; the types that are told apart, float32, float16 and bfloat16, differ by 8 and more.
SIZE = 2.0

ONCE = "round once, to the type asked for"
WIDE = "compute 16-bit inputs in float32 and float64 inputs in float64, and round once, at the end"
FULL = (
    'ask for full products: no autocast, torch.set_float32_matmul_precision("highest"), '
    'jax.default_matmul_precision("highest")'
)


def in_type(name: str) -> Callable[[Precision], Precision | None]:
    """Every operation in a type, where a larger one is promised."""
    return lambda p: replace(p, work=name) if UNIT[name] > UNIT[p.work] else None


def products_in(name: str) -> Callable[[Precision], Precision | None]:
    """The factors of matrix products rounded to a type first; None where the results have no more digits than it.

    What returns float16 rounds on the way to float16, if it rounds at all: those are as many digits as TF32 has.
    """
    return lambda p: replace(p, product=name) if UNIT[name] > max(UNIT[p.work], UNIT[p.out]) else None


PRECISIONS: tuple[tuple[str, str, Callable[[Precision], Precision | None]], ...] = (
    ("matrix products in TF32", FULL, products_in("tf32")),
    ("matrix products in bfloat16", FULL, products_in("bfloat16")),
    ("computed in float32", WIDE, in_type("float32")),
    ("computed in float16", WIDE, in_type("float16")),
    ("computed in bfloat16", WIDE, in_type("bfloat16")),
)


def rounded_arrays(setup: Setup, backward: bool, tree: str) -> dict[str, Any]:
    """Every array of the reference by name where each operation rounds as the setup's precision says."""
    if setup.edits:
        return exact(setup, backward, tree)
    tape: dict[str, Any] = {}
    with roundings():
        found, grads = reference(setup.case, setup.drawn, tape, setup.precision, tree, backward)
    return {name: x.v if isinstance(x, ErrArray) else x for name, x in (tape | found | grads).items()}


def balanced(error: np.ndarray, value: np.ndarray) -> bool:
    """Whether errors go up and down, and towards 0 and away from it, about as often; a factor or an offset does not.

    Errors that have a rounding in common are not independent, so a few more of one sign are no sign of anything.
    """
    enough = np.count_nonzero(error) / 6
    ways = (error, error * np.sign(value))
    return bool(error.any()) and all(min(np.sum(x > 0), np.sum(x < 0)) >= enough for x in ways if x.any())


def likeness(error: np.ndarray, made: np.ndarray) -> float:
    """The correlation of a candidate's errors with what a mistake does; 0 where they are not of one size.

    Args:
        error: the candidate's array less what was expected.
        made: the reference's array with the mistake less that without it.
    """
    size, made_size = (float(np.sqrt(np.sum(x**2))) for x in (error, made))
    if not 0 < size <= SIZE * made_size or not made_size <= SIZE * size:
        return 0.0
    correlation = float(np.sum(error * made)) / (size * made_size)
    chance = min(DEVIATIONS / np.sqrt(np.count_nonzero(error)), CERTAIN)
    return correlation if correlation >= max(CORRELATION, chance) else 0.0


def evidence(correlation: float) -> str:
    return (
        "looks like roundings: made in the reference, they give errors of this size in the same places and directions "
        f"(correlation {correlation:.2f}); this is a statistical finding"
    )
