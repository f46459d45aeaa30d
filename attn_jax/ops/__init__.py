"""JAX's dialect: the operations that every variant is written in, by the names that all three packages have."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.nn import sigmoid
from jax.numpy import broadcast_to, exp, sqrt, where
from jax.numpy import log as log
from jax.numpy import log1p as log1p
from jax.numpy import maximum as maximum
from jax.numpy import stack as stack
from jax.numpy import tanh as tanh
from jax.sharding import AxisType, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from attn_jax.ops.modules import call_module
from attn_jax.ops.named import record as record
from attn_jax.ops.pages import group_heads as group_heads
from attn_jax.ops.pages import split_rows as split_rows
from attn_jax.ops.pages import take_pages as take_pages
from attn_jax.ops.pages import write_entries as write_entries
from attn_jax.ops.products import product, projection
from attn_jax.ops.pytrees import pytree as pytree
from attn_jax.ops.sharded import sharded_as_after, with_entries_of, with_heads_of, with_rows_of
from attn_np import contract
from attn_np.contract import check_index
from attn_np.contract import memoized_check as memoized_check
from attn_np.contract import scope as scope
from attn_np.contract._decode import known_sizes

if TYPE_CHECKING:
    Array = jax.Array
else:
    Array = jax.Array | np.ndarray | nnx.Variable  # calls may pass NumPy's arrays, and parameters are nnx.Params
Tape = Any  # a dictionary of named intermediates, or None
DType = Any  # as JAX takes it: a name, jnp.float32, a NumPy dtype
Device = Any  # a jax.Device, a Sharding, the name of a platform such as "cpu", or None

DTYPES = {"float64": jnp.float64, "float32": jnp.float32, "float16": jnp.float16, "bfloat16": jnp.bfloat16}
SIXTEEN_BITS = (jnp.float16, jnp.bfloat16)


# Arrays ---------------------------------------------------------------------------------------------------------------


def amax_detached(x: Array, axis: int) -> Array:
    """Largest entry of an axis, without a gradient: subtracted from every score before `exp`, it cancels."""
    return jnp.max(jax.lax.stop_gradient(x), axis=axis)


def amin_detached(x: Array, axis: int) -> Array:
    """Least entry of an axis, without a gradient."""
    return jnp.min(jax.lax.stop_gradient(x), axis=axis)


def detach(x: Array) -> Array:
    """The array itself, without a gradient."""
    return jax.lax.stop_gradient(x)


def any_over(x: Array, axes: tuple[int, ...]) -> Array:
    """Whether any entry of some axes is True; the array itself without axes."""
    return jnp.any(x, axis=axes)


def reorder(x: Array, order: Sequence[int]) -> Array:
    """The axes in another order."""
    return jnp.transpose(x, order)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays joined along an axis. On a mesh with explicit axes, an axis sharded in one array is sharded in all."""
    shardings = [jax.typeof(x).sharding for x in arrays]
    if any(AxisType.Explicit in sharding.mesh.axis_types for sharding in shardings):
        spec = P(*(next(filter(None, axes), None) for axes in zip(*(x.spec for x in shardings), strict=True)))
        arrays = [jax.sharding.reshard(x, spec) for x in arrays]
    return jnp.concatenate(arrays, axis)


def roll_last(x: Array, n: int) -> Array:
    """x with the last n entries of its last axis moved to the front."""
    return concatenate([x[..., -n:], x[..., :-n]], -1)


def expand_to_heads(x: Array, like: Array) -> Array:
    """What all heads share, `b s y`, once for each head of `like`, `b s h k`: `b s h y`.

    On a mesh with explicit axes it is sharded as `like` is, so that its gradient is summed over devices, not gathered.
    """
    sharding = jax.typeof(like).sharding
    spec = P(*sharding.spec[:3], None) if AxisType.Explicit in sharding.mesh.axis_types else None
    return broadcast_to(x[:, :, None], (*like.shape[:3], x.shape[-1]), out_sharding=spec)


def arange(n: int, like: Array) -> Array:
    """0 .. n - 1, on the device of `like`."""
    return jnp.arange(n)


def argmax(x: Array, axis: int) -> Array:
    """Index of the largest entry; the lowest index among equals."""
    return jnp.argmax(x, axis=axis)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    # `zeros_like` keeps the device variance of `like` in `shard_map`, and if the shape is that of `like`, the explicit
    # axes of a mesh; an `nnx.Param` must become an array first.
    like = jnp.asarray(like)
    return jnp.zeros_like(like, shape=None if shape == like.shape else shape)


def constants(values: Sequence[float | int | Sequence[int]], like: Array) -> Array:
    """An array of given numbers, each rounded once to the dtype of `like`."""
    return jnp.asarray(np.array(values, np.float64).astype(like.dtype))


def lookup(values: Sequence[int], index: Array) -> Array:
    """Given integers by an index that must fit, in its dtype; on an explicit mesh each lies where its index does."""
    sharding = jax.typeof(index).sharding
    out_sharding = sharding if AxisType.Explicit in sharding.mesh.axis_types else None
    return constants(values, index).at[index].get(out_sharding=out_sharding)


def take(table: Array, index: Array, fits: bool = False) -> Array:
    """Rows of a table, upcast, by an index that must fit, and is not checked if it does: `u d`, `b t` -> `b t d`.

    A traced index outside the table gives NaN, never another row. On a mesh with explicit axes a row lies where its
    index does.
    """
    check_index(None if fits else known_range(index), table.shape[0])
    table, index = jnp.asarray(upcast(table)), where(index < 0, table.shape[0], index)
    shardings = jax.typeof(table).sharding, jax.typeof(index).sharding
    mesh = next((x.mesh for x in shardings if AxisType.Explicit in x.mesh.axis_types), None)
    sharding = None
    if mesh is not None:
        rows, widths = shardings[1].spec, shardings[0].spec[1:]
        sharding = NamedSharding(mesh, P(*rows, *(axis if axis not in rows else None for axis in widths)))
    return table.at[index].get(mode="fill", fill_value=jnp.nan, out_sharding=sharding)


def gather_last(x: Array, index: Array) -> Array:
    """Entries of the last axis, by the same index in every head: `b h t n`, `b t s` or `1 t s` -> `b h t s`."""
    index = broadcast_to(index[:, None], (*x.shape[:3], index.shape[-1]))
    return jnp.take_along_axis(x, index, axis=-1)


def interpolate_last(x: Array, position: Array) -> Array:
    """Entries of the last axis, interpolated linearly between positions: `b h t n`, `b h t s` -> `b h t s`.

    A position is from 0 to n - 1. At a whole number its gradient is the slope to the next entry; at the last, 0.
    """
    low = jnp.floor(jax.lax.stop_gradient(position))
    # A position may be NaN, and is then read at 0.
    index, steps = (
        jnp.nan_to_num(low).astype(jnp.int32),
        jnp.pad(x[..., 1:] - x[..., :-1], ((0, 0), (0, 0), (0, 0), (0, 1))),
    )
    here, step = (jnp.take_along_axis(entries, index, axis=-1, mode="promise_in_bounds") for entries in (x, steps))
    return here + (position - low) * step


def diagonals_to_pairs(x: Array, t: int, s: int) -> Array:
    """From one number per diagonal, `b h t n` or `b h 1 n`, to one per pair, `b h t s`, the first query first
    (in PyTorch the last).

    The skew of Huang et al. 2018 (arXiv:1809.04281): each row begins one diagonal further to the left than the row
    before, the last row with the first of the n = t + s - 1. Of one query, where n is s, it is x as it is. Flattened,
    taken from entry t - 1 on and cut into rows of n - 1, the array has the result in the first s of each row. A single
    row is doubled log2(t) times: each doubling appends the rows so far, shifted further left, so that only stretches
    are copied.
    """
    n = x.shape[-1]
    if n == s:
        return x
    if x.shape[2] == 1:
        doublings = (t - 1).bit_length()
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, 2**doublings - t)))
        for rows in (2**i for i in range(doublings)):
            x = jnp.concatenate([x[..., rows:], x[..., :-rows]], 2)
        return x[:, :, -t:]
    flat = x.reshape(*x.shape[:2], t * n)
    return flat[..., t - 1 : t * n - 1].reshape(*x.shape[:2], t, n - 1)[..., :s]


def transpose_diagonals(x: Array) -> Array:
    """Diagonals in the order that `diagonals_to_pairs` takes where the rows are keys and the columns queries."""
    return x[..., ::-1]


def pairs_to_diagonals(x: Array, n: int) -> Array:
    """One number per pair, `b h t s`, as one per diagonal, `b h t n`, else 0: undoes `diagonals_to_pairs`."""
    b, h, t, s = x.shape
    flat = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, n - 1 - s))).reshape(b, h, t * (n - 1))
    return jnp.pad(flat, ((0, 0), (0, 0), (t - 1, 1))).reshape(b, h, t, n)


def clip(x: Array, low: int, high: int) -> Array:
    """Integers clamped to a range."""
    return jnp.clip(x, low, high)


def lengths_are_numbers() -> bool:
    """Whether lengths have values that can be written down; in a program that PyTorch compiles they may be symbols."""
    return True


def signed(x: Array) -> Array:
    """Integers as the widest signed ones, whose differences do not wrap; booleans as they are."""
    return x if x.dtype == bool else x.astype(jax.dtypes.canonicalize_dtype(np.int64))


def concrete(x: Array) -> bool:
    """Whether the values are known; under jit, compile and vmap they are not."""
    return not isinstance(x, Tracer)


def known_range(x: Array) -> tuple[Any, Any] | None:
    """The least and the largest entry, as Python's numbers; None where there are none or their values are not known."""
    if not concrete(x) or x.size == 0:
        return None
    known = np.asarray(x)  # under jit `x.min()` of a constant would be traced
    return known.min().item(), known.max().item()


def allows_data_dependent_shapes(x: Array) -> bool:
    """Whether shapes may depend on values: eager NumPy and PyTorch, never JAX."""
    return False  # every new shape is compiled


def is_longer(t: int, n: int) -> bool:
    """Whether a length is above `n`."""
    return t > n


def constant_like(make: Callable[..., Any]) -> Callable[..., Array]:
    """`make(np, *values)` as a function of the values, whose results are cached, and constants under jit."""
    cached = lru_cache(maxsize=8)(partial(make, np))
    return lambda *args, like: jnp.asarray(cached(*known_sizes(make.__name__, *args)))


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans, a count."""
    return jnp.cumsum(x, axis=axis)


def reverse_cumsum(x: Array) -> Array:
    """For each entry of the last axis, the sum of it and of those after it."""
    return jax.lax.cumsum(x, axis=x.ndim - 1, reverse=True)


def write_slots(buffer: Array, slot: Array, x: Array) -> Array:
    """The buffer with slots written: `b s ...`, `b t`, `b t ...` -> `b s ...`. Under jit in place if it is donated."""
    # Row by row: on a mesh XLA then sees that no device writes into the rows of another, and moves nothing.
    write = jax.vmap(lambda row, slot, x: row.at[slot].set(x))
    return write(with_rows_of(buffer, x), with_rows_of(slot, x), with_entries_of(x, buffer))


def write_slice(buffer: Array, start: int, x: Array) -> Array:
    """The buffer with entries from slot `start` on: `b s ...`, `b t ...` -> `b s ...`. In place as `write_slots` is."""
    return buffer.at[:, start : start + x.shape[1]].set(x)


def write_positions(buffer: Array, start: int, stop: int) -> Array:
    """The buffer, `b s`, with slots start .. stop - 1 set to their own indices. Under jit in place if it is donated."""
    return buffer.at[:, start:stop].set(jnp.arange(start, stop))


def take_rows(x: Array, index: Array) -> Array:
    """Batch rows by an index that must fit: `b ...`, `n` -> `n ...`; a traced one outside gives the last row."""
    sharding = jax.typeof(x).sharding
    out_sharding = sharding if AxisType.Explicit in sharding.mesh.axis_types else None
    return x.at[index].get(mode="clip", out_sharding=out_sharding)


def read_lengths(cache: Any) -> list[int]:
    """The lengths of a cache as Python's numbers."""
    return cache.length.tolist()


def note_lengths(cache: Any, lengths: list[int] | int | None) -> Any:
    """The cache itself; in PyTorch it carries its lengths, so that they need not be read from a device."""
    return cache


def use_up(cache: Any) -> None:
    """Nothing: arrays of JAX stay what they are unless they are donated."""


def empty_slots(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`."""
    return zeros(shape, like)


def dtype_name(x: Any) -> str:
    return x.dtype.name


def float_dtype_name(who: str, dtype: DType) -> str:
    """The name of a float dtype, if JAX can compute in it.

    Raises:
        ValueError: not a float type, or float64 while JAX has it switched off.
    """
    name = contract.float_dtype_name(who, dtype)
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"{who}: expected JAX to have float64 switched on, got jax_enable_x64=False; "
            'call jax.config.update("jax_enable_x64", True) first, or set dtype="float32"'
        )
    return name


def check_device(device: Device) -> Device:
    """The device itself, which must be one that is here; of the name of a platform, its first.

    Raises:
        ValueError: it is not.
    """
    if device is None or isinstance(device, jax.Device | Sharding):
        return device
    try:
        return jax.devices(device if isinstance(device, str) and device else repr(device))[0]  # "" is JAX's default
    except RuntimeError as error:
        known = dict.fromkeys(x.platform for x in (*jax.devices("cpu"), *jax.devices()))
        raise contract.device_error("attn_jax", known, device) from error


def from_numpy(x: np.ndarray, device: Device = None) -> Array:
    """A NumPy array as an array of JAX, bit by bit, on a device, with a sharding, or where JAX puts it."""
    return jnp.asarray(x, x.dtype) if device is None else jax.device_put(x, device)


def to_numpy(x: Array) -> np.ndarray:
    """An array of JAX as a NumPy array, bit by bit."""
    return np.asarray(x)


def upcast(x: Any) -> Any:
    """float32 for 16-bit types; other types, None and modules stay as they are. Of a Param, its array."""
    x = x[...] if isinstance(x, nnx.Variable) else x
    return x.astype(jnp.float32) if not isinstance(x, nnx.Module | None) and x.dtype in SIXTEEN_BITS else x


def to_dtype(x: Any, dtype: str) -> Any:
    """An array in a dtype, rounded once if it has fewer bits; None stays None."""
    return x if x is None or dtype_name(x) == dtype else x.astype(DTYPES.get(dtype, dtype))


def einsum(subscripts: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that both operands have and the output lacks.

    It is in the inputs' precision, at least float32. JAX multiplies float32 in TF32 or bfloat16 on accelerators by
    default; here float32 means float32. A caller who sets `jax_default_matmul_precision` gets that precision.
    """
    return product(subscripts, upcast(a), upcast(b))


def linear(subscripts: str, x: Array, weight: Array | nnx.Module, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one; of a module, what it returns."""
    y = call_module(weight, x) if isinstance(weight, nnx.Module) else projection(subscripts, upcast(x), upcast(weight))
    return y if bias is None else y + upcast(bias)


def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product."""
    return a + z * (b - a)


def l2_normalize(x: Array, eps: float | Array) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * upcast(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """`rms_norm` of the deviation from the mean over the last axis, plus a bias (Ba et al. 2016, equation 4)."""
    unit = rms_norm(x - jnp.sum(x, axis=-1, keepdims=True) / x.shape[-1], weight, eps)
    return unit if bias is None else unit + upcast(bias)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018, also called swish)."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return jnp.logaddexp(x, 0.0)


def softmax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The softmax over the allowed entries of an axis; where none is allowed the weights are 0.

    Hidden entries are replaced by -inf, so that their value has no effect, and the largest score is subtracted, so that
    `exp` cannot overflow. Allowed scores that are all -inf have overflowed: their weights are NaN, not 0.
    """
    if allowed is not None:
        scores = where(allowed, scores, -jnp.inf)
    some = True if allowed is None else jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return _softmax(scores, jnp.asarray(some), axis)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _softmax(scores: Array, overflow_is_nan: Array, axis: int) -> Array:
    """The softmax of scores that are -inf where hidden; where none is allowed the weights are 0."""
    top = jnp.max(scores, axis=axis, keepdims=True, initial=-jnp.inf)
    e = exp(scores - where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(e, axis=axis, keepdims=True)
    total = where((top == -jnp.inf) & overflow_is_nan, jnp.nan, total)
    return e / where(total == 0, 1.0, total)


@_softmax.defjvp
def _softmax_jvp(axis: int, primals: Any, tangents: Any) -> Any:
    """Weights times what the scores change by more than their weighted mean.

    In reverse mode the barrier comes between a product and its sum over the axis. In one operation XLA on a CPU adds
    one number after the other, at four times the time of both.
    """
    weights = _softmax(*primals, axis)
    change = weights * tangents[0]
    mean = jnp.sum(change, axis=axis, keepdims=True)
    return weights, change - weights * jax.lax.optimization_barrier(broadcast_to(mean, change.shape))


def softmax_and_lse(scores: Array, allowed: Array | None) -> tuple[Array, Array]:
    """The weights of a softmax over the keys and the logarithm of each row's sum of exponentials, `b h t`.

    Where no key is allowed, or all overflow to -inf, the weights are 0 and the logarithm is -inf: a part for `merge`.
    """
    scores = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(scores, -1)[..., None]
    top = where(top == float("-inf"), 0.0, top)
    total = exp(scores - top).sum(-1)
    nothing = total == 0
    lse = where(nothing, float("-inf"), top[..., 0] + log(where(nothing, 1.0, total)))
    return _softmax(scores, jnp.asarray(False), -1), lse


def repeat_heads(x: Array, like: Array) -> Array:
    """Head h // r of x for each head h of `like`, `b t h k`, if x has 1/r as many. Without a head axis, x itself."""
    if x.ndim == 3 or x.shape[2] == like.shape[2]:
        return x
    # No indexing: where a mesh cuts the heads, each device repeats its own.
    x = broadcast_to(x[:, :, :, None], (*x.shape[:3], like.shape[2] // x.shape[2], *x.shape[3:]))
    return with_heads_of(x.reshape(*x.shape[:2], like.shape[2], *x.shape[4:]), like)


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """The weights, 0 where `keep` is False, the others divided by 1 - rate."""
    return weights if keep is None else where(keep, weights / (1.0 - rate), 0.0)


# Scans ----------------------------------------------------------------------------------------------------------------


def iterate(body: Callable[[Any], Any], carry: Any, times: int) -> Any:
    """The carry after `times` steps `carry = body(carry)`."""
    return jax.lax.fori_loop(0, times, lambda _, carry: body(carry), carry)


def remat(function: Callable[..., Any], batch_at_once: int | None = None) -> Callable[..., Any]:
    """The function itself: outside loops XLA plans what is kept for the backward pass."""
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
    `recompute_with`: arrays that every step reads, by `body(carry, xs, *recompute_with)`. If there are any, only the
    carries are kept, and the backward pass computes the steps again.
    """
    xs = tuple(None if x is None else jnp.moveaxis(x, 1, 0) for x in xs)
    step = jax.checkpoint(body, prevent_cse=False) if recompute_with else body
    turn = lambda carry, xs: step(carry, xs, *recompute_with)  # noqa: E731
    carry, stacked = jax.lax.scan(turn, sharded_as_after(turn, carry, xs), xs, reverse=reverse)
    out = record(tape, **{name: jnp.moveaxis(y, 0, 1) for name, y in zip(names, stacked, strict=True)})
    return carry, out if isinstance(out, tuple) else (out,)
