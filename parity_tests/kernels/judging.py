"""What a kernel returned, held against the reference by the bounds of a class of arithmetic."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from parity_tests.kernels import arithmetic as arithmetics
from parity_tests.kernels.arithmetic import Arithmetic
from parity_tests.kernels.calling import Answer
from parity_tests.kernels.canonical import Array, Case, Results, Softmax
from parity_tests.kernels.limits import Limits
from parity_tests.kernels.specs import Spec, case_of, empty_rows


@dataclass(frozen=True)
class Difference:
    """A result that is beyond its bounds.

    Attributes:
        name: of the result.
        at: its worst number, in the case's layout.
        got, want, bound: there.
        wrong, total: how many numbers are beyond, of how many.
        rows: how many rows hold one, and how many there are.
    """

    name: str
    at: tuple[int, ...]
    got: float
    want: float
    bound: float
    wrong: int
    total: int
    rows: tuple[int, int]

    @property
    def ratio(self) -> float:
        error = abs(self.got - self.want)
        return error / self.bound if self.bound > 0 and np.isfinite(error) else np.inf


def of_empty_rows(spec: Spec, limits: Limits, want: Results, bound: Results, arithmetic: Arithmetic) -> None:
    """Set what a kernel promises for queries without keys, where that is not 0."""
    none, case = empty_rows(spec, limits), case_of(spec, limits)
    if limits.empty_rows == "zero" or none is None or not isinstance(case, Softmax) or not np.any(none) or spec.sinks:
        return
    if limits.empty_rows == "nan":
        want["y"] = np.where(none[..., None], np.nan, want["y"])
    else:  # the average of all values, as equal scores give it
        flat = replace(
            case,
            q=np.zeros_like(case.q),
            causal="",
            window=None,
            mask=None,
            bias=None,
            slopes=None,
            softcap=None,
            dy=None,
        )
        for found, x in ((want, arithmetics.reference(flat)), (bound, arithmetics.bounds(flat, arithmetic))):
            found["y"] = np.where(none[..., None], x["y"], found["y"])
    want.pop("lse", None)  # of which nothing is promised there


@lru_cache(maxsize=4)
def expected(spec: Spec, limits: Limits, arithmetic: Arithmetic) -> tuple[Results, Results]:
    """The right results of a case by a kernel's promises, and their bounds."""
    case: Case = case_of(spec, limits)
    want, bound = dict(arithmetics.reference(case)), dict(arithmetics.bounds(case, arithmetic, grads=spec.grads))
    of_empty_rows(spec, limits, want, bound, arithmetic)
    return want, bound


def unjudged(spec: Spec, limits: Limits, answer: Answer, arithmetic: Arithmetic) -> Counter[str]:
    """How many numbers of each result have no bound: a kernel of the class may overflow there, or promises nothing."""
    want, bound = expected(spec, limits, arithmetic)
    return Counter(
        {
            name: int(np.sum(np.isposinf(bound[name]))) if name in want else int(got.size)
            for name, got in answer.results.items()
        }
    )


def differences(spec: Spec, limits: Limits, answer: Answer, arithmetic: Arithmetic) -> list[Difference]:
    """The results beyond their bounds."""
    want, bound = expected(spec, limits, arithmetic)
    found = []
    for name, got in answer.results.items():
        if name not in want:
            continue
        ratio = arithmetics.ratios(got, want[name], bound[name])
        beyond: Array = ~(ratio <= 1)
        if np.any(beyond):
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(beyond, ratio, 0))), ratio.shape))
            by_row = np.any(beyond, axis=-1) if ratio.ndim else beyond
            found.append(
                Difference(
                    name,
                    at,
                    float(got[at]),
                    float(want[name][at]),
                    float(bound[name][at]),
                    int(np.sum(beyond)),
                    int(ratio.size),
                    (int(np.sum(by_row)), int(by_row.size)),
                )
            )
    return found
