"""Are a candidate's gradients those of its own forward pass? Where a mistake explains the outputs, the reference with it
answers by differences: the backward pass by hand does not follow a mistake of the forward one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT
from parity_tests.explain.verdicts import Judged, Setup, exact, tree_of
from parity_tests.judge.candidates import pulled
from parity_tests.judge.cases import Drawn

STEP = 2.0**-14  # differences of this size lose less to rounding and to the third derivative than a gradient differs by
SAFETY = 1024  # times what both are known to: nothing that is right is so far away
DIRECTIONS = 2


def wrong_gradients(run: Judged, made: Callable[[Setup], Setup | None], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Names of the gradients that are not those of the reference with a mistake, as differences of its outputs show.

    Args:
        run: the candidate's, whose outputs a mistake explains.
        made: makes the mistake.
        wanted: the gradients of the reference without it, with their bounds.
    """
    arrays = run.drawn.params | {n: x for n, x in run.drawn.inputs.items() if x.dtype.kind == "f"}
    for name, x in arrays.items():
        grad, bound = run.outcome.grads.get(f"d{name}"), wanted.get(f"d{name}")
        if grad is None or grad.shape != x.shape or not isinstance(bound, ErrArray) or bound.shape != x.shape:
            continue
        rng = np.random.default_rng(run.drawn.seed)
        if any(not along(run, made, name, rng.normal(size=x.shape), grad, bound.b) for _ in range(DIRECTIONS)):
            yield f"d{name}"


def along(
    run: Judged, made: Callable[[Setup], Setup | None], name: str, way: np.ndarray, grad: np.ndarray, bound: np.ndarray
) -> bool:
    """Whether a gradient is the slope of the outputs in one direction, as far as two differences tell."""
    (wide, size), (narrow, _) = (slope(run, made, name, way, step) for step in (STEP, STEP / 2))
    if wide is None or narrow is None:
        return True
    got = float(np.sum(grad * way))
    known = abs(wide - narrow) + UNIT["float64"] * size / STEP + float(np.sum(bound * np.abs(way)))
    return not abs(got - (4 * narrow - wide) / 3) > SAFETY * known


def slope(
    run: Judged, made: Callable[[Setup], Setup | None], name: str, way: np.ndarray, step: float
) -> tuple[float | None, float]:
    """How fast the outputs, times the gradients that they get, change in a direction; and how large their sum is."""
    ends = [ahead(run, made, name, sign * step * way) for sign in (1.0, -1.0)]
    if any(end is None for end in ends):
        return None, 0.0
    (up, size), (down, _) = (end for end in ends if end is not None)
    return (up - down) / (2 * step), size


def ahead(
    run: Judged, made: Callable[[Setup], Setup | None], name: str, by: np.ndarray
) -> tuple[float, float] | None:
    """The outputs times the gradients that they get, summed, and the same of their sizes, with one array moved."""
    setup = made(replace(run.setup, drawn=moved(run.drawn, name, by)))
    if setup is None:
        return None
    with tree_of(setup) as tree:
        found = exact(setup, False, tree)
    shapes = {n: x.shape for n, x in run.outcome.outputs.items()}
    if "y" not in shapes or any(n not in found for n in shapes):
        return None
    dys = {n: dy for n, dy in pulled(run.case, run.drawn, found_shapes(found)).items() if n in shapes}
    products = [found[n] * dy.astype(np.float64) for n, dy in dys.items()]
    return sum(float(np.sum(x)) for x in products), sum(float(np.sum(np.abs(x))) for x in products)


def found_shapes(found: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(x) for name, x in found.items()}


def moved(drawn: Drawn, name: str, by: np.ndarray) -> Drawn:
    """The call with one array moved, in float64."""

    def part(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: x.astype(np.float64) + by if n == name else x for n, x in arrays.items()}

    return replace(drawn, inputs=part(drawn.inputs), params=part(drawn.params))
