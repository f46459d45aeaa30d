"""Are a candidate's gradients those of its own forward pass? Where a mistake explains the outputs, differences of the
reference with it answer: the backward pass by hand does not follow a mistake of the forward one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT
from parity_tests.explain.verdicts import Judged, Setup, exact, tree_of
from parity_tests.judge.candidates import pulled
from parity_tests.judge.cases import Drawn

STEP = 2.0**-14  # differences of this size lose less to rounding and to the third derivative than a gradient differs by
SAFETY = 1024  # times what both are known to: nothing that is right is so far away


@dataclass(frozen=True)
class Slopes:
    """The outputs of the reference with a mistake, as a function of weights and inputs.

    Attributes:
        run: the candidate's, whose outputs the mistake explains.
        made: makes it.
        bounds: of the gradients of the reference without it, by name.
        held: arrays on the way that do not follow.
    """

    run: Judged
    made: Callable[[Setup], Setup | None]
    bounds: Mapping[str, np.ndarray]
    held: Mapping[str, Any] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """Names of the candidate's gradients that are no slopes of these outputs."""
        return [name for name in self.bounds if not self.agrees(name)]

    def agrees(self, name: str) -> bool:
        """Whether a gradient is the slope in one direction, as far as two differences tell."""
        grad, bound = self.run.outcome.grads[name], self.bounds[name]
        way = np.random.default_rng(self.run.drawn.seed).normal(size=grad.shape)
        ends = [[self.moved(name.removeprefix("d"), by * way) for by in (step, -step)] for step in (STEP, STEP / 2)]
        sums = [[0.0 if end is None else end[0] for end in pair] for pair in ends]
        if any(end is None for pair in ends for end in pair):
            return True
        wide, narrow = ((up - down) / (2 * step) for (up, down), step in zip(sums, (STEP, STEP / 2), strict=True))
        size = max(end[1] for pair in ends for end in pair if end is not None)
        known = abs(wide - narrow) + UNIT["float64"] * size / STEP + float(np.sum(bound * np.abs(way)))
        return not abs(float(np.sum(grad * way)) - (4 * narrow - wide) / 3) > SAFETY * known

    def moved(self, name: str, by: np.ndarray) -> tuple[float, float] | None:
        """The outputs times the gradients that they get, summed, and the same of their sizes, with one array moved."""
        found = self.arrays(moved(self.run.drawn, name, by))
        if found is None or any(n not in found for n in self.run.outcome.outputs):
            return None
        dys = pulled(self.run.case, self.run.drawn, {n: np.shape(x) for n, x in found.items()})
        products = [found[n] * dy.astype(np.float64) for n, dy in dys.items() if n in self.run.outcome.outputs]
        return sum(float(np.sum(x)) for x in products), sum(float(np.sum(np.abs(x))) for x in products)

    def arrays(self, drawn: Drawn) -> dict[str, Any] | None:
        """Every array of the forward pass."""
        setup = self.made(replace(self.run.setup, drawn=drawn))
        if setup is None:
            return None
        with tree_of(setup) as tree:
            return exact(setup, False, tree, self.held)

    def stopped_at(self) -> Iterator[str]:
        """Names of arrays that pass on no gradient, each of which explains all of the candidate's gradients."""
        for name, x in (self.arrays(self.run.drawn) or {}).items():
            if name not in self.run.outcome.outputs and np.asarray(x).dtype.kind == "f":
                held = replace(self, held={name: x})
                if all(held.agrees(grad) for grad in (*self.wrong_first, *self.bounds)):
                    yield name

    @cached_property
    def wrong_first(self) -> list[str]:
        """One of the gradients that are wrong, to be asked before the others."""
        return self.wrong()[:1]


def slopes(run: Judged, made: Callable[[Setup], Setup | None], wanted: Mapping[str, Any]) -> Slopes:
    """The slopes of the reference with a mistake.

    Args:
        run: the candidate's.
        made: makes the mistake.
        wanted: the gradients of the reference without it, with their bounds.
    """
    arrays = run.drawn.params | {n: x for n, x in run.drawn.inputs.items() if x.dtype.kind == "f"}
    bounds = {f"d{name}": wanted.get(f"d{name}") for name in arrays}
    grads = run.outcome.grads
    fits = {n: w.b for n, w in bounds.items() if isinstance(w, ErrArray) and n in grads and w.shape == grads[n].shape}
    return Slopes(run, made, {n: b for n, b in fits.items() if b.shape == arrays[n.removeprefix("d")].shape})


def moved(drawn: Drawn, name: str, by: np.ndarray) -> Drawn:
    """The call with one array moved, in float64."""

    def part(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: x.astype(np.float64) + by if n == name else x for n, x in arrays.items()}

    return replace(drawn, inputs=part(drawn.inputs), params=part(drawn.params))
