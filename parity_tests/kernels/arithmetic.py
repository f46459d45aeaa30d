"""Classes of arithmetic that right kernels compute in, from the narrowest to the widest, and the bounds of each.

A class says what a kernel may round and how well its functions are; whatever it may do, the wider ones may do too. A
bound holds for every order of blocks of at least `units.LEAST_BLOCK` keys, for weights as powers of 2 or of e, for a
softmax that is rescaled as its maximum grows or computed from the log-sum-exp, and for derivatives by sum p dp or by
dy . y.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parity_tests.bounds.precision import FUNCTION, LARGEST, UNDERFLOW, UNIT
from parity_tests.kernels import of_recurrent, of_softmax
from parity_tests.kernels.canonical import Array, Case, Results, Softmax
from parity_tests.kernels.units import Units

SIXTEEN = ("float16", "bfloat16")
# Relative error of 2^x by a polynomial of degree 3 between whole numbers, with which newer kernels relieve the unit for
# special functions: 8.8e-5 at best.
POLYNOMIAL = 2.0**-13
# Of the reference: wider than float64 where the machine has such a type.
WIDE = np.longdouble
WIDE_UNIT = float(np.finfo(WIDE).eps) / 2


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel promises of its arithmetic.

    Attributes:
        name: as the verdict says it.
        dtypes: of kernels that may have it.
        work: type of sums and functions.
        factors: type that the factors of every matrix product are rounded to first; "" for none.
        polynomial: whether powers come from a polynomial with the relative error `POLYNOMIAL`.
        narrow: whether weights, and what else a kernel computes and multiplies matrices by, are rounded to the
            kernel's 16 bits first; the sums dy . y may then be those of rounded outputs.
        several: whether scores, and what is summed over blocks or over the heads of a group, are rounded to 16 bits
            each time.
    """

    name: str
    dtypes: tuple[str, ...]
    work: str = "float32"
    factors: str = ""
    polynomial: bool = False
    narrow: bool = False
    several: bool = False

    def __str__(self) -> str:
        return self.name


CLASSES = (
    Arithmetic("float64", ("float64",), work="float64"),
    Arithmetic("float32", ("float64", "float32", *SIXTEEN)),
    Arithmetic("float32, exp2 by a polynomial", ("float64", "float32", *SIXTEEN), polynomial=True),
    Arithmetic("TF32 products, float32 sums", ("float64", "float32"), factors="tf32", polynomial=True),
    Arithmetic("bfloat16 products, float32 sums", ("float64", "float32"), factors="bfloat16", polynomial=True),
    Arithmetic("float32 sums, probabilities rounded to 16 bits", SIXTEEN, polynomial=True, narrow=True),
    Arithmetic("scores and sums rounded to 16 bits", SIXTEEN, polynomial=True, narrow=True, several=True),
)


def classes_of(dtype: str) -> tuple[Arithmetic, ...]:
    """The classes that kernels of a type may have, from the narrowest."""
    return tuple(c for c in CLASSES if dtype in c.dtypes)


def units(arithmetic: Arithmetic, dtype: str) -> Units:
    """The units of an arithmetic for a kernel's type."""
    work, rounded = arithmetic.work, UNIT[dtype] if dtype in SIXTEEN else 0.0
    u = UNIT[work] + (WIDE_UNIT if work == "float64" else UNIT["float64"])
    factor = UNIT[arithmetic.factors] if arithmetic.factors else 0.0
    narrow = rounded if arithmetic.narrow else 0.0
    return Units(
        u=u,
        # What is computed in the returned type is not rounded to it again.
        out=rounded or UNIT[work],
        product=2 * factor + factor**2,
        narrow=narrow,
        several=rounded if arithmetic.several else 0.0,
        function=max(FUNCTION * u, POLYNOMIAL if arithmetic.polynomial else 0.0),
        eta=UNDERFLOW[work],
        eta_narrow=UNDERFLOW[dtype] if narrow else UNDERFLOW[work],
        eta_out=UNDERFLOW[dtype],
        eta_several=UNDERFLOW[dtype] if arithmetic.several else 0.0,
        largest=LARGEST[dtype],
    )


def rules(case: Case) -> Any:
    """The module that knows what a case computes."""
    return of_softmax if isinstance(case, Softmax) else of_recurrent


@lru_cache(maxsize=4)
def exact(case: Case) -> dict[str, Array]:
    """The results of a case, and what they were computed from; in a type beyond float64 where that is judged."""
    wide = WIDE if case.dtype == "float64" else np.float64
    with np.errstate(all="ignore"):
        return rules(case).exact(case, wide)


def results_of(case: Case) -> tuple[str, ...]:
    """The names of what a kernel returns for a case: outputs, and gradients where it has a dy."""
    return rules(case).results_of(case)


def reference(case: Case) -> dict[str, Array]:
    """The right results by name, in float64."""
    found = exact(case)
    return {name: np.asarray(found[name], np.float64) for name in results_of(case)}


def bounds(case: Case, arithmetic: Arithmetic, grads: bool = True) -> dict[str, Array]:
    """How far each number of a right kernel with this arithmetic may be from the reference, by the results' names."""
    with np.errstate(all="ignore"):
        found = rules(case).bounds(case, exact(case), units(arithmetic, case.dtype))
        values = reference(case)
    lost = UNIT["float64"] if arithmetic.work == "float64" else 0.0  # the reference's own last rounding
    return {
        name: found[name] + lost * np.abs(np.where(np.isfinite(values[name]), values[name], 0.0))
        for name in results_of(case)
        if grads or not name.startswith("d")
    }


def ratios(got: Array, want: Array, bound: Array) -> Array:
    """Error/bound of each number; infinite where one is finite and the other is not, or both differ in sign of inf."""
    got = np.asarray(got, np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        found = np.where(error == 0, 0.0, error / bound)
        strange = ~np.isfinite(got) | ~np.isfinite(want)
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | np.isposinf(bound)
        return np.where(strange, np.where(same, 0.0, np.inf), found)


def worst(case: Case, got: Results, arithmetic: Arithmetic) -> dict[str, float]:
    """The largest error/bound of each result; infinite where it is missing or of another shape."""
    want, bound = reference(case), bounds(case, arithmetic)
    found = {}
    for name in got:
        fits = name in want and np.shape(got[name]) == want[name].shape
        found[name] = float(np.max(ratios(got[name], want[name], bound[name]), initial=0.0)) if fits else np.inf
    return found


def narrowest(results: Iterable[tuple[Case, Results]]) -> Arithmetic | None:
    """The first class whose bounds hold for every result of every case, all of one type; None if none does."""
    results = list(results)
    for arithmetic in classes_of(results[0][0].dtype):
        if all(ratio <= 1 for case, got in results for ratio in worst(case, got, arithmetic).values()):
            return arithmetic
    return None
