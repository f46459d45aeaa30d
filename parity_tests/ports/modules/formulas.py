"""What a module's own code does with numbers that are known: which formula of a small set each side's numbers follow.

A formula is accepted where it gives every number of an array within the bound that the array has, in float64. So it is
no likeness: norms with another eps or activations of another kind are far beyond their bounds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from parity_tests.ports.modules.bounds import gap
from parity_tests.ports.modules.recordings import Arrays

EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 0.0)
# Of so many arrays every sum and product is tried.
MOST_SOURCES = 8
MOST_TERMS = 3
erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu (tanh)": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu (x sigmoid(1.702 x))": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


@dataclass(frozen=True)
class Source:
    """An array that a module's code has, by name."""

    name: str
    value: np.ndarray


def sources_like(given: Sequence[Source], shape: tuple[int, ...]) -> list[Source]:
    """The sources of a shape, and the two halves of those that are twice as wide, which fused projections give."""
    found = []
    for source in given:
        x = source.value
        if x.dtype.kind != "f":
            continue
        if x.ndim == len(shape) and x.shape[:-1] == shape[:-1] and x.shape[-1:] == (2 * shape[-1],):
            for half, name in enumerate(("first", "second")):
                found.append(Source(f"the {name} half of {source.name}", np.split(x, 2, -1)[half]))
        elif x.size > 1 and fits(x.shape, shape):
            found.append(
                Source(source.name, np.broadcast_to(x.reshape(shape) if x.size == math.prod(shape) else x, shape))
            )
    return found[-MOST_SOURCES:]


def fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be added to one of another, as a bias or a table of positions is."""
    if math.prod(shape) == math.prod(whole):
        return True
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in zip(shape[::-1], whole[::-1], strict=False))


def formula_of(
    y: np.ndarray, bound: float, given: Sequence[Source], params: Arrays, numbers: Mapping[str, float]
) -> str:
    """The formula that an array follows, in words; "" where it follows none."""
    tried = sources_like(given, y.shape)

    def right(x: np.ndarray) -> bool:
        return x.shape == y.shape and gap(x, y) <= bound

    with np.errstate(all="ignore"):
        for name, x in simple(tried, given, y.shape, params, numbers):
            if right(x):
                return name
        for n in range(1, MOST_TERMS + 1):
            for some in combinations(tried, n):
                told = weighted_sum(y, some, right)
                if told:
                    return told
        for name, x in simple(tried, given, y.shape, params, numbers):
            told = weighted_sum(y, (Source(name, x),), right)
            if told:
                return told
    return ""


def simple(
    tried: Sequence[Source],
    given: Sequence[Source],
    shape: tuple[int, ...],
    params: Arrays,
    numbers: Mapping[str, float],
) -> Iterator[tuple[str, np.ndarray]]:
    """Formulas without a free number, by name: the likeliest first."""
    for source in tried:
        yield source.name, source.value
    for source in tried:
        yield from ((f"{name} of {source.name}", f(source.value)) for name, f in ACTIVATIONS.items())
    for one, other in permutations(tried, 2):
        for name, f in ACTIVATIONS.items():
            yield f"{name} of {one.name}, times {other.name}", f(one.value) * other.value
    for one, other in combinations(tried, 2):
        yield f"{one.name} times {other.name}", one.value * other.value
    for source in tried:
        yield from norms(source, params, numbers)
    for source in given:
        yield from looked_up(source, params)
        yield from projected(source, shape, params)


def norms(source: Source, params: Arrays, numbers: Mapping[str, float]) -> Iterator[tuple[str, np.ndarray]]:
    """Norms over the last axis, with each eps and each use of the weights."""
    x = source.value
    width = x.shape[-1]
    scales = {name: p for name, p in params.items() if p.size == width and not name.endswith("bias")}
    biases = {name: p for name, p in params.items() if p.size == width and name.endswith("bias")}
    centred = x - x.mean(-1, keepdims=True)
    kinds = {
        "RMSNorm": (x, (x**2).mean(-1, keepdims=True)),
        "LayerNorm": (centred, (centred**2).mean(-1, keepdims=True)),
        "LayerNorm over n - 1": (centred, (centred**2).sum(-1, keepdims=True) / max(width - 1, 1)),
        "a norm of the length": (x, (x**2).sum(-1, keepdims=True)),
    }
    eps_of = dict.fromkeys([*(n for key, n in numbers.items() if "eps" in key and n >= 0), *EPS])
    for kind, (top, square) in kinds.items():
        for eps in eps_of:
            unit = top / np.sqrt(square + eps)
            for with_scale, scaled in [
                *((f"scaled by {name}", unit * p.reshape(-1)) for name, p in scales.items()),
                *((f"scaled by 1 + {name}", unit * (1 + p.reshape(-1))) for name, p in scales.items()),
                ("not scaled", unit),
            ]:
                told = f"{kind} of {source.name} with eps {eps:g}, {with_scale}"
                for name, p in biases.items():
                    yield f"{told}, plus {name}", scaled + p.reshape(-1)
                yield f"{told}{', without its bias' if biases else ''}", scaled


def looked_up(source: Source, params: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of a table."""
    ids = source.value
    if ids.dtype.kind in "iu" and ids.size:
        for name, table in params.items():
            if table.ndim == 2:
                for shift in (0, 1, -1, 2, -2):
                    rows = ids + shift
                    if rows.min() >= 0 and rows.max() < len(table):
                        of = source.name if not shift else f"{source.name} {'+' if shift > 0 else '-'} {abs(shift)}"
                        yield f"rows {of} of {name}", table[rows]


def projected(source: Source, shape: tuple[int, ...], params: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """A matrix product, with the matrix or its transpose, with a bias or none."""
    x = source.value
    if x.dtype.kind != "f" or x.ndim < 2:
        return
    for name, w in params.items():
        if w.ndim != 2:
            continue
        for of, matrix in ((name, w.T), (f"{name} transposed", w)):
            if x.shape[-1] == matrix.shape[0] and (*x.shape[:-1], matrix.shape[1]) == shape:
                y = x @ matrix
                yield f"the product of {source.name} with {of}", y
                for bias, p in params.items():
                    if p.ndim == 1 and p.size == matrix.shape[1]:
                        yield f"the product of {source.name} with {of}, plus {bias}", y + p


def weighted_sum(y: np.ndarray, some: Sequence[Source], right: Callable[[np.ndarray], bool]) -> str:
    """A sum of arrays, each times a number, in words; "" where it is none."""
    columns = np.stack([x.value.reshape(-1) for x in some], -1)
    flat = y.reshape(-1)
    if y.size <= 2 * len(some) or not np.isfinite(columns).all() or not np.isfinite(flat).all():
        return ""
    factors = np.linalg.lstsq(columns, flat, rcond=None)[0]
    if not right((columns @ factors).reshape(y.shape)) or not np.round(factors, 6).all():
        return ""
    factors = np.round(factors, 9)  # a whole number is one, whatever its last digits
    told = ""
    for factor, source in zip(factors, some, strict=True):
        sign = " - " if factor < 0 else " + " if told else ""
        size = "" if abs(factor) == 1 else f"{number(abs(factor), y.shape[-1])} times "
        told += f"{sign if told else sign.strip()}{size}{source.name}"
    return told


def digits(x: float) -> str:
    """A number as it is recognised: six digits of it."""
    return f"{x:.6g}"


def number(factor: float, width: int) -> str:
    """A factor, with what it is of the width where it is that."""
    named = {"sqrt({})": math.sqrt(width), "1/sqrt({})": 1 / math.sqrt(width), "{}": width, "1/{}": 1 / width}
    for form, value in named.items():
        if width > 1 and digits(factor) == digits(value):
            return f"{factor:.4g} = {form.format(width)}"
    roots = (n for n in range(2, 65) if math.isqrt(n) ** 2 != n)
    root = next((n for n in roots if digits(factor) in (digits(math.sqrt(n)), digits(1 / math.sqrt(n)))), None)
    if root is not None:
        return f"{factor:.4g} = {'sqrt' if factor > 1 else '1/sqrt'}({root})"
    return f"{factor:.4g}"


def relation(x: np.ndarray, y: np.ndarray, bound: float) -> str:
    """How one array follows from the other alone, in words: a factor, or a shift of whole numbers."""
    if x.shape != y.shape or not x.size:
        return ""
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        shift = np.unique(y.astype(np.int64) - x.astype(np.int64))
        return f"those of a {'+' if shift[0] > 0 else '-'} {abs(int(shift[0]))}" if shift.size == 1 and shift[0] else ""
    if x.dtype.kind != "f" or y.dtype.kind != "f" or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return ""
    square = float(np.vdot(x, x))
    factor = float(np.vdot(x, y)) / square if square else 0.0
    if x.size > 1 and round(factor, 6) and factor != 1 and gap(factor * x, y) <= bound * max(1.0, abs(factor)):
        return (
            f"those of a times the constant factor {number(abs(factor), x.shape[-1])}{' and -1' if factor < 0 else ''}"
        )
    return ""
