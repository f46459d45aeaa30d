"""The numbers of a class of arithmetic: unit roundoffs, what products and functions add, underflow."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from parity_tests.kernels.canonical import Array

LEAST_BLOCK = 8


@dataclass(frozen=True)
class Units:
    """The numbers of an arithmetic for kernels of a type.

    Attributes:
        u: unit roundoff of the sums, with that of the reference.
        out: of the type that results are returned in.
        product: what the rounding of both factors adds to a product, relatively.
        narrow: what the rounding of one factor to 16 bits adds; 0 where none is rounded.
        several: unit of the roundings of partial sums; 0 where there are none.
        function: relative error of exp.
        eta, eta_narrow, eta_out: absolute error of one underflow of each type.
        eta_several: that of each rounding of a partial sum.
        largest: number of the type that results are returned in.
    """

    u: float
    out: float
    product: float
    narrow: float
    several: float
    function: float
    eta: float
    eta_narrow: float
    eta_out: float
    eta_several: float
    largest: float

    def gamma(self, n: int) -> float:
        """Relative error of a sum of n products in any order (Higham, 2nd ed., chapter 3)."""
        return n * self.u / (1 - n * self.u) if n * self.u < 1 else np.inf

    def overflows(self, size: Array) -> Array:
        """Whether a partial sum may be beyond the type that it is rounded to, by the sum of the terms' sizes."""
        return (self.several > 0) & (size > self.largest)

    def returned(self, value: Array, bound: Array) -> Array:
        """The bound after the rounding to the returned type, which nothing that is 0 without an error has."""
        with np.errstate(invalid="ignore", over="ignore"):
            wide = bound + self.out * (np.abs(value) + bound) + np.where(bound > 0, self.eta_out, 0.0)
            wide = np.where((bound == 0) & (value == 0), 0.0, wide)
            return np.where(
                np.abs(value) + wide <= self.largest, np.nan_to_num(wide, nan=np.inf, posinf=np.inf), np.inf
            )


def blocks_at_most(n: int) -> int:
    """Into how many blocks n keys may be cut."""
    return ceil(n / LEAST_BLOCK)
