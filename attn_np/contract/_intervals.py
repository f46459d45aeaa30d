"""Interval arithmetic for patterns: what a condition on positions can be for all positions of a block."""

from typing import Any

from attn_np.contract._base import is_integer


class TruthBounds:
    """What is known of a condition on intervals.

    Attributes:
        possible: whether some pair of their integers may meet it; where False, none does.
        certain: whether every pair is sure to meet it; where False, some may not.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to these

    def __init__(self, *, possible: Any, certain: Any) -> None:
        self.possible, self.certain = possible, certain

    def __and__(self, other: Any) -> "TruthBounds":
        return TruthBounds(possible=self.possible & other.possible, certain=self.certain & other.certain)

    def __or__(self, other: Any) -> "TruthBounds":
        return TruthBounds(possible=self.possible | other.possible, certain=self.certain | other.certain)

    def __invert__(self) -> "TruthBounds":
        return TruthBounds(possible=self.certain ^ True, certain=self.possible ^ True)

    def __bool__(self) -> bool:
        raise TypeError("pattern: expected conditions joined by & | ~, got and, or, not, if or a < b < c; write & | ~")


class Interval:
    """Integers from `low` to `high`, which may be arrays of such ends: their sums, quotients and comparisons."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = low, high

    def __add__(self, other: Any) -> "Interval":
        other = as_interval(other)
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> "Interval":
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Any) -> "Interval":
        other = as_interval(other)
        return Interval(self.low - other.high, self.high - other.low)

    def __rsub__(self, other: Any) -> "Interval":
        return as_interval(other) - self

    def __mul__(self, factor: int) -> "Interval":
        check_operand("factor", factor)
        return Interval(self.low * factor, self.high * factor) if factor >= 0 else -(self * -factor)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, divisor: int) -> "Interval":
        check_operand("divisor", divisor, 1)
        return Interval(self.low // divisor, self.high // divisor)

    def __mod__(self, divisor: int) -> "Interval":
        """All remainders, unless the interval lies between two multiples. Conditions are 0 or 1 instead of a `where`,
        which the three frameworks do not share.
        """
        check_operand("divisor", divisor, 1)
        between = self.low // divisor == self.high // divisor
        crossing = between ^ True
        return Interval(self.low % divisor * between, self.high % divisor * between + (divisor - 1) * crossing)

    def __abs__(self) -> "Interval":
        above, below = self.low > 0, self.high < 0
        farther = -self.low > self.high
        return Interval(self.low * above - self.high * below, self.high * (farther ^ True) - self.low * farther)

    def __le__(self, other: Any) -> TruthBounds:
        other = as_interval(other)
        return TruthBounds(possible=self.low <= other.high, certain=self.high <= other.low)

    def __ge__(self, other: Any) -> TruthBounds:
        return as_interval(other) <= self

    def __gt__(self, other: Any) -> TruthBounds:
        return ~(self <= other)

    def __lt__(self, other: Any) -> TruthBounds:
        return ~(self >= other)

    def __eq__(self, other: Any) -> TruthBounds:  # type: ignore[override]
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> TruthBounds:  # type: ignore[override]
        return ~(self == other)


def check_operand(name: str, x: Any, least: int | None = None) -> None:
    """Refuse what intervals cannot be multiplied or divided by.

    Raises:
        TypeError: no whole number, or one below `least`.
    """
    if not is_integer(x) or (least is not None and x < least):
        start = "" if least is None else f" from {least}"
        got, fix = repr(x), "choose one"
        if isinstance(x, Interval):
            got, fix = "a position", "positions may be multiplied and divided only by integers"
        raise TypeError(f"pattern: expected a {name} that is a whole number{start}, got {got}; {fix}")


def as_interval(x: Any) -> Interval:
    """An interval as it is; a number as the interval of it alone."""
    return x if isinstance(x, Interval) else Interval(x, x)
