"""Rules for entries at positions between them, which are piecewise linear in the position."""

from typing import Any

import numpy as np

from attn_np import ops
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, jostled, lift, magnitude, plain, rounded, rule
from parity_tests.bounds.precision import promised

# A position that errs by less than a half lies on one of at most two lines; by less than one, of three.
LINES = 3


def lowest_and_highest(position: ErrArray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole parts of the least and of the largest number that a position among n entries may be."""
    errors = np.where(np.isfinite(position.b), position.b, n)
    least, most = (np.floor(np.clip(position.v + side * errors, 0, n - 1)) for side in (-1, 1))
    return least, most


def slopes_within(x: ErrArray, position: ErrArray) -> tuple[list[ErrArray], np.ndarray]:
    """The slopes of the lines that a position may lie on, and where these may be more than `LINES`."""
    n = x.shape[-1]
    first, last = lowest_and_highest(position, n)
    # After the last entry there is no line: a slope of 0 without an error.
    steps = ErrArray(
        ops.differences_to_next(x.v), np.concatenate([x.b[..., 1:] + x.b[..., :-1], np.zeros((*x.shape[:-1], 1))], -1)
    )
    rows = [ops.flat_indices(np.minimum(first + line, last), n) for line in range(LINES)]
    return [entries(steps, row) for row in rows], last - first >= LINES


def entries(x: ErrArray, index: np.ndarray) -> ErrArray:
    """The entries at indices into all rows laid end to end."""
    return ErrArray(x.v.reshape(-1)[index], x.b.reshape(-1)[index])


def steepest(x: ErrArray, position: ErrArray) -> np.ndarray:
    """The largest slope, in absolute value, of the lines that a position may lie on."""
    slopes, more = slopes_within(x, position)
    most = np.max([magnitude(slope) for slope in slopes], axis=0)
    high, low = (np.max(side, axis=-1, keepdims=True) for side in (x.v + x.b, x.b - x.v))
    return np.where(more, high + low, most)


@rule(FUNCTIONS, ops.interpolate_last)
def interpolate_last(x: Any, position: Any) -> ErrArray:
    """y = (1 - w) a + w b moves by (1 - w) da + w db, and by the error of the position times the steepest slope there.

    The part w of a position is exact. Computed as it stands here or as a + w (b - a): two roundings before the last.
    """
    x, position, u = lift(x), lift(position), promised().u
    low, n = np.floor(position.v), x.shape[-1]
    a, b = (entries(x, ops.flat_indices(row, n)) for row in (low, np.minimum(low + 1, n - 1)))
    part = position.v - low
    moved = (1 - part) * a.b + part * b.b
    if position.b.any():
        moved = moved + np.where(position.b == 0, 0.0, position.b * steepest(x, position))
    terms = np.maximum(part * (magnitude(a) + magnitude(b)), (1 - part) * magnitude(a) + part * magnitude(b))
    # At a whole number the entry itself comes out.
    own = np.where((part == 0) & (position.b == 0), 0.0, 2 * u * terms)
    return rounded(plain(ops.interpolate_last)(x.v, position.v), moved + own)


@rule(FUNCTIONS, vjp.slope_last)
def slope_last(x: Any, position: Any) -> ErrArray:
    """A decision by the position: where its bound leaves several lines, the bound covers the slope of each."""
    x, position = lift(x), lift(position)
    v = plain(vjp.slope_last)(x.v, position.v)
    slopes, more = slopes_within(x, position)
    b = np.max([np.abs(slope.v - v) + slope.b for slope in slopes], axis=0)
    b = np.where(more, np.abs(v) + 2 * np.max(magnitude(x), axis=-1, keepdims=True), b)
    return rounded(v, b)


@rule(FUNCTIONS, vjp.interpolated_entries_vjp)
def interpolated_entries_vjp(position: Any, dy: Any, n: int) -> ErrArray:
    """A sum of dy times the share of an entry in it: 1 - w of the one before the position, w of the one after.

    A share errs as the position does, and 1 - w by three roundings; w is exact, however small. The sum of (1 - w) dy
    may be made as one of dy less one of w dy, whose terms are larger by 2 w dy.
    """
    position, dy, p = lift(position), lift(dy), promised()
    low = np.floor(position.v)
    least, most = (x[..., None] for x in lowest_and_highest(position, n))
    entry, part, low = np.arange(n), (position.v - low)[..., None], low[..., None]
    error = np.where(np.isfinite(position.b), position.b, 1.0)[..., None]
    share = np.where(entry == low, 1 - part, np.where(entry == low + 1, part, 0.0))
    may_be_before, may_be_after = (entry >= least) & (entry <= most), (entry > least) & (entry <= most + 1)
    b = np.where(may_be_before | may_be_after, error, 0.0)
    b = b + np.where(may_be_before & ((part > 0) | (error > 0)), 3 * p.u, 0.0)
    larger = np.where(may_be_before, 2 * np.clip(position.v[..., None] - entry + error, 0.0, 1.0), 0.0)
    more = p.gamma(dy.shape[-1] + 2) * ops.einsum("bhts,bhtsx->bhtx", magnitude(dy), larger)
    out = ops.einsum("bhts,bhtsx->bhtx", dy, ErrArray(share, np.minimum(b, 1.0)))
    return jostled(ErrArray(out.v, out.b + more))
