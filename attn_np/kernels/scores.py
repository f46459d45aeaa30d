"""What the kernel does to the scores of a block: windows, selections in place, sums of diagonals, and powers of 2."""

from functools import cache, lru_cache
from math import log
from typing import Any

import numpy as np

from attn_np.contract._band import Span
from attn_np.ops import Array


@lru_cache(maxsize=32)
def outside_window(t: int, s: int, first: int, left: int | None, right: int | None) -> Array:
    """Which scores lie outside the window, `t s`; `first` is the first key's position minus the first query's."""
    relative_position = np.arange(s, dtype=np.int32) - np.arange(t, dtype=np.int32)[:, None] + first
    hidden = np.zeros((t, s), np.bool_)
    hidden = hidden if right is None else hidden | (relative_position > right)
    hidden = hidden if left is None else hidden | (relative_position < -left)
    hidden.setflags(write=False)
    return hidden


def zero_hidden_(x: Array, hidden: Array | None) -> None:
    """Set what is hidden to 0, in place. Bitwise: on random masks the branches of `copyto` take 20 times as long."""
    if hidden is not None:
        bits = x.view(f"i{x.itemsize}")
        bits &= (hidden.view(np.int8) - np.int8(1)).astype(bits.dtype)


def hidden_to_neg_inf_(x: Array, hidden: Array | None) -> None:
    """Set hidden scores to -inf, in place, by a minimum: with -inf where they are hidden, with inf where they are
    visible. A visible NaN becomes inf, which makes its row NaN as well.
    """
    if hidden is not None:
        np.fmin(x, (x.dtype.type(0.5) - hidden) * x.dtype.type(np.inf), out=x)


@cache
def smallest_normal(dtype: np.dtype) -> np.floating:
    """The smallest normal number of a dtype."""
    return np.finfo(dtype).tiny


@cache
def underflow_score(dtype: np.dtype) -> float:
    """The score whose weight is the smallest normal number, and a little more: what is below weighs nothing."""
    return log(smallest_normal(dtype)) + 0.5


def zero_subnormal_(x: Array) -> None:
    """Set what is below the normal numbers to 0, in place: products with such numbers are slow."""
    bits = x.view(f"u{x.itemsize}")
    np.copyto(bits, 0, where=bits < smallest_normal(x.dtype).view(bits.dtype))


def add_to_diagonal_sums(skewed_sums: Array, dscores: Array, queries: Span, keys: Any, t: int) -> None:
    """Add the score gradients of a block, `b h t s`, to `skewed_sums`, of axes heads, rows and diagonals.

    A strip is as many queries as there are rows. The last query of each strip is added to the last row, the one before
    it to the row before, and so on. Row i + 1 begins one diagonal earlier than row i: unskewed and summed, the rows are
    the gradient of each diagonal.
    """
    rows = skewed_sums.shape[1]
    for start in range(queries.start, queries.stop, rows):
        stop = min(start + rows, queries.stop)
        end = max(stop, rows)  # the first queries may be fewer than the rows
        first = t - end + keys.start
        part = dscores[:, :, start - queries.start : stop - queries.start]
        at = np.s_[:, rows - end + start : rows - end + stop, first : first + keys.length]
        skewed_sums[at] += part[0] if len(part) == 1 else part.sum(0)


@cache
def exp2_is_fast(dtype: np.dtype) -> bool:
    """Whether NumPy vectorises `exp2` on this processor, as for AVX-512: it takes half as long as `exp` there."""
    inspect = getattr(np.lib, "introspect", None)  # since NumPy 2.1
    loops = {} if inspect is None else inspect.opt_func_info(func_name="^exp2$").get("exp2", {})
    return not loops.get(2 * dtype.char, {}).get("current", "baseline").startswith("baseline")
