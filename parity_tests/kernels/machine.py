"""What the simulated kernels compute with: a class of arithmetic, whose operations round as a device's do."""

from functools import cache

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import nearest
from parity_tests.kernels.arithmetic import SIXTEEN, Arithmetic
from parity_tests.kernels.canonical import Array

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
DEGREE = 3


@cache
def polynomial() -> Array:
    """Coefficients of 2^x on [0, 1), the highest first and 1 as the last, with about the least relative error."""
    nodes = (1 + np.cos(np.pi * (np.arange(64) + 0.5) / 64)) / 2
    rest = np.polyfit(nodes, (2**nodes - 1) / nodes, DEGREE - 1, w=nodes / 2**nodes)
    return np.append(rest, 1.0)


class Machine:
    """The operations of an arithmetic, for kernels of a type."""

    def __init__(self, arithmetic: Arithmetic, dtype: str) -> None:
        self.arithmetic, self.dtype = arithmetic, dtype
        self.work = np.dtype(arithmetic.work)

    def load(self, x: Array) -> Array:
        """Numbers of the kernel's type in the type that is computed in."""
        with np.errstate(over="ignore"):
            return np.asarray(x).astype(self.work)

    def rounded(self, x: Array) -> Array:
        """Numbers rounded to the kernel's type, in the working one."""
        with np.errstate(over="ignore"):
            return x.astype(DTYPES[self.dtype]).astype(self.work)

    def dot(self, x: Array, y: Array) -> Array:
        """A matrix product, whose factors some devices round first."""
        return self.factor(x) @ self.factor(y)

    def factor(self, x: Array) -> Array:
        """A factor of a matrix product, as the device takes it."""
        return nearest(x, self.arithmetic.factors).astype(self.work) if self.arithmetic.factors else x

    def narrow(self, x: Array) -> Array:
        """A factor of a matrix product that the kernel computed itself."""
        return self.rounded(x) if self.arithmetic.narrow and self.dtype in SIXTEEN else x

    def partial(self, x: Array) -> Array:
        """What is summed over blocks."""
        return self.rounded(x) if self.arithmetic.several and self.dtype in SIXTEEN else x

    def exp2(self, x: Array) -> Array:
        """2^x; by a polynomial between whole numbers where the arithmetic has one."""
        if not self.arithmetic.polynomial:
            return np.exp2(x)
        whole = np.floor(np.maximum(x, self.work.type(-2000)))
        part = np.polyval(polynomial().astype(self.work), np.maximum(x, self.work.type(-2000)) - whole)
        return np.ldexp(part, whole.astype(int)).astype(self.work)

    def exp(self, x: Array) -> Array:
        """e^x."""
        return self.exp2(x * self.work.type(LOG2E)) if self.arithmetic.polynomial else np.exp(x)

    def store(self, x: Array) -> Array:
        """A result as the kernel returns it, in float64."""
        return self.rounded(x).astype(np.float64)
