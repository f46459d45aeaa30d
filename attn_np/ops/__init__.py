"""NumPy's dialect: the operations that every variant is written in, by the names that all three packages have."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from attn_np.contract import check_index, device_error, record, tap_step
from attn_np.contract import float_dtype_name as float_dtype_name
from attn_np.contract import memoized_check as memoized_check
from attn_np.contract import scope as scope
from attn_np.ops.pages import group_heads as group_heads
from attn_np.ops.pages import split_rows as split_rows
from attn_np.ops.pages import take_pages as take_pages
from attn_np.ops.pages import write_entries as write_entries

if TYPE_CHECKING:
    Array = np.ndarray
else:
    Array = Any  # any array with NumPy's protocols: the parity harness's arrays carry an error bound through this file
Tape = Any  # a dictionary of named intermediates, or None
DType = str
Device = str | None

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
SIXTEEN_BITS = (DTYPES["float16"], DTYPES["bfloat16"])


def dispatches_on_array_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: an array type may override the function, by NumPy's own protocol (NEP 18).

    A subclass of ndarray that overrides nothing, such as a memmap, is treated as an ndarray.
    """
    default = np.ndarray.__array_function__

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            handler = getattr(type(arg), "__array_function__", None)
            if handler is not None and handler is not default:
                return handler(arg, call, (type(arg),), args, kwargs)
        return function(*args, **kwargs)

    return wraps(function)(call)


# Arrays ---------------------------------------------------------------------------------------------------------------

exp, log, log1p, tanh, sqrt = np.exp, np.log, np.log1p, np.tanh, np.sqrt
where, maximum = np.where, np.maximum
broadcast_to, concatenate, stack, argmax = np.broadcast_to, np.concatenate, np.stack, np.argmax


@dispatches_on_array_type
def amax_detached(x: Array, axis: int) -> Array:
    """Largest entry of an axis, without a gradient: subtracted from every score before `exp`, it cancels."""
    return np.max(x, axis=axis)


def amin_detached(x: Array, axis: int) -> Array:
    """Least entry of an axis, without a gradient."""
    return np.min(x, axis=axis)


def detach(x: Array) -> Array:
    """The array itself, without a gradient."""
    return x


def any_over(x: Array, axes: tuple[int, ...]) -> Array:
    """Whether any entry of some axes is True; the array itself without axes."""
    return np.any(x, axis=axes)


def reorder(x: Array, order: Sequence[int]) -> Array:
    """The axes in another order."""
    return x.transpose(order)


def roll_last(x: Array, n: int) -> Array:
    """x with the last n entries of its last axis moved to the front."""
    return concatenate([x[..., -n:], x[..., :-n]], -1)


def expand_to_heads(x: Array, like: Array) -> Array:
    """What all heads share, `b s y`, once for each head of `like`, `b s h k`: `b s h y`."""
    return broadcast_to(x[:, :, None], (*like.shape[:3], x.shape[-1]))


def arange(n: int, like: Array) -> Array:
    """0 .. n - 1, on the device of `like`."""
    return np.arange(n)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    return np.zeros(shape, like.dtype)


@dispatches_on_array_type
def constants(values: Sequence[float | int | Sequence[int]], like: Array) -> Array:
    """An array of given numbers, each rounded once to the dtype of `like`."""
    return np.array(values, np.float64).astype(like.dtype)


def lookup(values: Sequence[int], index: Array) -> Array:
    """Given integers by an index that must fit, in its dtype."""
    return constants(values, index)[index]


def take(table: Array, index: Array, fits: bool = False) -> Array:
    """Rows of a table, upcast, by an index that must fit, and is not checked if it does: `u d`, `b t` -> `b t d`."""
    check_index(None if fits else known_range(index), table.shape[0])
    return np.take(upcast(table), index, axis=0)  # a tenth of the time of brackets, where rows are short


def gather_last(x: Array, index: Array) -> Array:
    """Entries of the last axis, by the same index in every head: `b h t n`, `b t s` or `1 t s` -> `b h t s`."""
    (b, h, t, n), s = x.shape, index.shape[-1]
    if type(x) is not np.ndarray:  # the parity harness's error arrays
        return np.take_along_axis(x, broadcast_to(index[:, None], (b, h, t, s)), -1)
    flat = broadcast_to(index + np.arange(t)[:, None] * n, (b, t, s))  # a fourth of the time of an index by axes
    rows = [np.take(x[i, j], flat[i]) for i, j in np.ndindex(b, h)]
    return np.asarray(rows, x.dtype).reshape(b, h, t, s)


@dispatches_on_array_type
def interpolate_last(x: Array, position: Array) -> Array:
    """Entries of the last axis, interpolated linearly between positions: `b h t n`, `b h t s` -> `b h t s`.

    A position is from 0 to n - 1. At a whole number its gradient is the slope to the next entry; at the last, 0.
    """
    low = np.floor(position)
    index = flat_indices(low, x.shape[-1])
    y = np.subtract(position, low, out=low)
    y *= np.take(differences_to_next(x), index, mode="clip")
    y += np.take(x, index, mode="clip")
    return y


def flat_indices(index: Array, n: int) -> Array:
    """Indices into rows of n, one row for each `b h t`, as indices into all rows laid end to end: `b h t s`."""
    with np.errstate(invalid="ignore"):  # NaN, which is then read at 0
        index = index.astype(np.intp)
    np.maximum(index, 0, out=index)
    index += (np.arange(prod(index.shape[:-1])) * n).reshape(*index.shape[:-1], 1)
    return index


def differences_to_next(x: Array) -> Array:
    """The next entry of the last axis less each entry; 0 for the last."""
    return np.concatenate([x[..., 1:] - x[..., :-1], np.zeros((*x.shape[:-1], 1), x.dtype)], -1)


def diagonals_to_pairs(x: Array, t: int, s: int) -> Array:
    """From one number per diagonal, `b h t n` or `b h 1 n`, to one per pair, `b h t s`, the first query first
    (in PyTorch the last).

    The skew of Huang et al. 2018 (arXiv:1809.04281): of the n = t + s - 1 diagonals the last query takes the first s,
    the query before it those from the second on, and the first query the last s. Of one query, where n is s, it is x as
    it is. The result is a view, also where one row serves all queries.
    """
    if x.shape[-1] == s:
        return x
    row, column = (x.strides[2] if x.shape[2] > 1 else 0), x.strides[3]
    shape, strides = (*x.shape[:2], t, s), (*x.strides[:2], row - column, column)
    return np.lib.stride_tricks.as_strided(x[..., t - 1 :], shape, strides)


def transpose_diagonals(x: Array) -> Array:
    """Diagonals in the order that `diagonals_to_pairs` takes where the rows are keys and the columns queries."""
    return x[..., ::-1]


def pairs_to_diagonals(x: Array, n: int) -> Array:
    """One number per pair, `b h t s`, as one per diagonal, `b h t n`, else 0: undoes `diagonals_to_pairs`."""
    t, s = x.shape[-2:]
    y = np.zeros((*x.shape[:-1], n), x.dtype)
    diagonals_to_pairs(y, t, s)[...] = x
    return y


def clip(x: Array, low: int, high: int) -> Array:
    """Integers clamped to a range."""
    return np.clip(x, low, high)


def lengths_are_numbers() -> bool:
    """Whether lengths have values that can be written down; in a program that PyTorch compiles they may be symbols."""
    return True


def signed(x: Array) -> Array:
    """Integers as the widest signed ones, whose differences do not wrap; booleans as they are."""
    return x if x.dtype == bool else x.astype(np.int64, copy=False)


def concrete(x: Array) -> bool:
    """Whether the values are known; under jit, compile and vmap they are not."""
    return True


def known_range(x: Array) -> tuple[Any, Any] | None:
    """The least and the largest entry, as Python's numbers; None where there are none or their values are not known."""
    if not isinstance(x, np.ndarray) or not x.size:  # an array that carries errors has no least entry
        return None
    return x.min().item(), x.max().item()


def allows_data_dependent_shapes(x: Array) -> bool:
    """Whether shapes may depend on values: eager NumPy and PyTorch, never JAX."""
    return True


def is_longer(t: int, n: int) -> bool:
    """Whether a length is above `n`."""
    return t > n


def constant_like(make: Callable[..., Any]) -> Callable[..., Array]:
    """`make(np, *values)` as a function of the values, whose results are cached; `like` is for other frameworks."""
    cached = lru_cache(maxsize=8)(partial(make, np))
    return lambda *args, like: cached(*args)


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans, a count."""
    return np.cumsum(x, axis=axis)


def reverse_cumsum(x: Array) -> Array:
    """For each entry of the last axis, the sum of it and of those after it."""
    return np.cumsum(x[..., ::-1], axis=-1)[..., ::-1]


def write_slots(buffer: Array, slot: Array, x: Array) -> Array:
    """The buffer with slots written: `b s ...`, `b t`, `b t ...` -> `b s ...`. In place: the old buffer is used up."""
    buffer[np.arange(buffer.shape[0])[:, None], slot] = x
    return buffer


def write_slice(buffer: Array, start: int, x: Array) -> Array:
    """The buffer with entries from slot `start` on: `b s ...`, `b t ...` -> `b s ...`. In place as `write_slots` is."""
    buffer[:, start : start + x.shape[1]] = x
    return buffer


def write_positions(buffer: Array, start: int, stop: int) -> Array:
    """The buffer, `b s`, with slots start .. stop - 1 set to their own indices. In place."""
    buffer[:, start:stop] = np.arange(start, stop)
    return buffer


def take_rows(x: Array, index: Array) -> Array:
    """Batch rows by an index that must fit: `b ...`, `n` -> `n ...`."""
    return x[index]


def read_lengths(cache: Any) -> list[int]:
    """The lengths of a cache as Python's numbers."""
    return cache.length.tolist()


def note_lengths(cache: Any, lengths: list[int] | int | None) -> Any:
    """The cache itself; in PyTorch it carries its lengths, so that they need not be read from a device."""
    return cache


def use_up(cache: Any) -> None:
    """Mark a cache as used up: its arrays are those of the next one, which writes into them."""
    object.__setattr__(cache, "spent", True)


def empty_slots(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`; the entries of one head, of `b s h k`, are contiguous in memory."""
    if len(shape) != 4:
        return zeros(shape, like)
    b, s, h, k = shape
    return zeros((b, h, s, k), like).swapaxes(1, 2)


def pytree(*, arrays: Sequence[str], static: Sequence[str]) -> Callable[[type], type]:
    """A decorator for dataclasses that says which fields are arrays and which are static, as JAX needs to know."""
    return lambda cls: cls


# NumPy puts the name of a type together each time it is asked for, in 3 us.
DTYPE_NAMES: dict[Any, str] = {}


def dtype_name(x: Array) -> str:
    name = DTYPE_NAMES.get(x.dtype)
    return DTYPE_NAMES.setdefault(x.dtype, x.dtype.name) if name is None else name


def check_device(device: Device) -> Device:
    """The device itself, which must be one that is here.

    Raises:
        ValueError: it is not.
    """
    if device not in (None, "cpu"):
        raise device_error("attn_np", ("cpu",), device)
    return device


def from_numpy(x: np.ndarray, device: Device = None) -> Array:
    """The array itself, on the only device that NumPy has, "cpu"."""
    return x


def to_numpy(x: Array) -> np.ndarray:
    """The array itself."""
    return x


def upcast(x: Any) -> Any:
    """float32 for 16-bit types; other types, and None, stay as they are."""
    return x.astype(np.float32) if x is not None and x.dtype in SIXTEEN_BITS else x


def to_dtype(x: Any, dtype: str) -> Any:
    """An array in a dtype, rounded once if it has fewer bits; None stays None."""
    return x if x is None or dtype_name(x) == dtype else x.astype(DTYPES.get(dtype, dtype))


@dispatches_on_array_type
def einsum(subscripts: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that both operands have and the output lacks, as one batched matrix product.

    A letter that one operand alone has must be in the output.
    """
    left, right, out = subscripts.replace("->", ",").split(",")
    n = (len(left) + len(right) - len(out)) // 2
    if n and left[-n:] == right[:n] and out == left[:-n] + right[n:]:  # a projection: no axis has to move
        first, last, contracted = a.shape[:-n], b.shape[n:], prod(b.shape[:n])
        product = upcast(a).reshape(prod(first), contracted) @ upcast(b).reshape(contracted, prod(last))
        return product.reshape(first + last)
    batch = [x for x in left if x in right and x in out]
    summed = [x for x in left if x in right and x not in out]
    rows, columns = [x for x in left if x not in right], [x for x in right if x not in left]
    size = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))

    def length(letters: list[str]) -> int:
        return prod([size[x] for x in letters])

    a = upcast(a).transpose([left.index(x) for x in batch + rows + summed])
    b = upcast(b).transpose([right.index(x) for x in batch + summed + columns])
    product = a.reshape(length(batch), length(rows), length(summed)) @ b.reshape(
        length(batch), length(summed), length(columns)
    )
    letters = batch + rows + columns
    return product.reshape([size[x] for x in letters]).transpose([letters.index(x) for x in out])


def linear(subscripts: str, x: Array, weight: Array, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one."""
    y = einsum(subscripts, x, weight)
    return y if bias is None else y + upcast(bias)


@dispatches_on_array_type
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), computed from exp(-|x|), which cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.maximum(small, x >= 0) / (1.0 + small)  # 1 where x >= 0; np.where takes ten times as long


@dispatches_on_array_type
def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product."""
    return a + z * (b - a)


def l2_normalize(x: Array, eps: float | Array) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(np.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * upcast(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """`rms_norm` of the deviation from the mean over the last axis, plus a bias (Ba et al. 2016, equation 4)."""
    unit = rms_norm(x - np.sum(x, axis=-1, keepdims=True) / x.shape[-1], weight, eps)
    return unit if bias is None else unit + upcast(bias)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018, also called swish)."""
    return x * sigmoid(x)


@dispatches_on_array_type
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x, 0.0)


@dispatches_on_array_type
def softmax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The softmax over the allowed entries of an axis; where none is allowed the weights are 0.

    Hidden entries are replaced by -inf, so that their value has no effect, and the largest score is subtracted, so that
    `exp` cannot overflow. Allowed scores that are all -inf have overflowed: their weights are NaN, not 0.
    """
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    top = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = np.sum(e, axis=axis, keepdims=True)
    overflowed = top == -np.inf
    if allowed is not None:
        overflowed = overflowed & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    total = np.where(overflowed, np.nan, total)
    return e / np.where(total == 0, 1.0, total)


def softmax_and_lse(scores: Array, allowed: Array | None) -> tuple[Array, Array]:
    """The weights of a softmax over the keys and the logarithm of each row's sum of exponentials, `b h t`.

    Where no key is allowed, or all overflow to -inf, the weights are 0 and the logarithm is -inf: a part for `merge`.
    """
    scores = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(scores, -1)[..., None]
    top = where(top == float("-inf"), 0.0, top)
    weights = exp(scores - top)
    total = weights.sum(-1)[..., None]
    nothing = total == 0
    total = where(nothing, 1.0, total)
    return weights / total, where(nothing, float("-inf"), top + log(total))[..., 0]


def repeat_heads(x: Array, like: Array) -> Array:
    """Head h // r of x for each head h of `like`, `b t h k`, if x has 1/r as many. Without a head axis, x itself."""
    if x.ndim == 3 or x.shape[2] == like.shape[2]:
        return x
    return x[:, :, arange(like.shape[2], like) // (like.shape[2] // x.shape[2])]


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """The weights, 0 where `keep` is False, the others divided by 1 - rate."""
    return weights if keep is None else np.where(keep, weights / (1.0 - rate), 0.0)


# Scans ----------------------------------------------------------------------------------------------------------------


def iterate(body: Callable[[Any], Any], carry: Any, times: int) -> Any:
    """The carry after `times` steps `carry = body(carry)`."""
    for _ in range(times):
        carry = body(carry)
    return carry


def remat(function: Callable[..., Any], batch_at_once: int | None = None) -> Callable[..., Any]:
    """The function itself: here the hand-written backward decides what is computed again."""
    return function


def scan(
    body: Callable[..., Any],
    carry: Any,
    xs: tuple[Any, ...],
    *,
    names: tuple[str, ...],
    tape: Tape = None,
    reverse: bool = False,
    recompute_with: tuple[Any, ...] = (),
) -> tuple[Any, tuple[Array, ...]]:
    """The last carry and the stacked ys of `carry, ys = body(carry, xs at one time)` along axis 1.

    The tape gets the stacked ys by `names`. An x that is None stays None in every step.
    `recompute_with`: arrays that every step reads, by `body(carry, xs, *recompute_with)`. In the other packages the
    steps are then computed again by the backward pass; here the hand-written one decides what is kept.
    """
    time_indices = range(xs[0].shape[1])
    step_ys: list[tuple[Array, ...]] = []
    for i in reversed(time_indices) if reverse else time_indices:
        carry, ys = body(carry, tuple(None if x is None else x[:, i] for x in xs), *recompute_with)
        carry, ys = tap_step(tape, names, i, carry, ys)
        step_ys.append(ys)
    step_ys = step_ys[::-1] if reverse else step_ys
    stacked = tuple(np.stack(y, axis=1) for y in zip(*step_ys, strict=True))
    if not stacked:  # no steps: run one on zeros, for shapes and dtypes alone
        blank = (None if x is None else np.zeros((x.shape[0], *x.shape[2:]), x.dtype) for x in xs)
        _, ys = body(carry, tuple(blank), *recompute_with)
        stacked = tuple(y[:, None][:, :0] for y in ys)
    out = record(tape, **dict(zip(names, stacked, strict=True)))
    return carry, out if isinstance(out, tuple) else (out,)
