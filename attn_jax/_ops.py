"""JAX's dialect: the operations that every variant is written in, under the names they have in all three trees."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.nn import sigmoid
from jax.numpy import broadcast_to, exp, sqrt, where
from jax.numpy import log as log
from jax.numpy import log1p as log1p
from jax.numpy import maximum as maximum
from jax.numpy import stack as stack
from jax.numpy import tanh as tanh
from jax.sharding import AxisType, Sharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import register_dataclass

from attn_np import contract
from attn_np.contract import cached_check as cached_check
from attn_np.contract import check_index, record
from attn_np.contract import scope as scope

if TYPE_CHECKING:
    Array = jax.Array
else:
    Array = jax.Array | np.ndarray | nnx.Variable  # calls may pass NumPy's arrays, and parameters are nnx.Params
Tape = Any  # a dictionary of named intermediates, or None
DType = Any  # as JAX takes it: a name, jnp.float32, a NumPy dtype
Device = Any  # a jax.Device, a Sharding, the name of a platform such as "cpu", or None

DTYPES = {
    "float64": jnp.float64,
    "float32": jnp.float32,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
}


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


def expand_to_heads(x: Array, like: Array) -> Array:
    """What all heads share, `b s y`, once for each head of `like`, `b s h k`: `b s h y`.

    On a mesh with explicit axes it is sharded like that, so that its gradient is summed over devices, not gathered.
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
    # In `shard_map` as different on each device as the other array, which may be an `nnx.Param`: no program takes one.
    return jnp.zeros_like(jnp.asarray(like), shape=shape)


def constants(values: Sequence[float | int | Sequence[int]], like: Array) -> Array:
    """An array of given numbers, each rounded once to the dtype of `like`."""
    return jnp.asarray(np.array(values, np.float64).astype(like.dtype))


def take(table: Array, index: Array) -> Array:
    """Rows of a table: `u d`, `b t` -> `b t d`. A traced token beyond the table gives NaN, never another row."""
    check_index(known_range(index), table.shape[0])
    index = where(index < 0, table.shape[0], index)
    return jnp.take(upcast(table), index, axis=0, mode="fill", fill_value=jnp.nan)


def gather_last(x: Array, index: Array) -> Array:
    """Entries of the last axis, by the same index in every head: `b h t x`, `b t s` or `1 t s` -> `b h t s`."""
    b, h, t, _ = x.shape
    index = broadcast_to(index[:, None], (b, h, t, index.shape[-1]))
    return jnp.take_along_axis(x, index, axis=-1)


def interpolate_last(x: Array, position: Array) -> Array:
    """Entries of the last axis at positions between them, on a line from each to the next: `b h t x`, `b h t s` ->
    `b h t s`.

    A position is from 0 to x - 1. At a whole number the line is that to the next entry; after the last there is none.
    """
    low = jnp.floor(jax.lax.stop_gradient(position))
    index, steps = low.astype(jnp.int32), jnp.pad(x[..., 1:] - x[..., :-1], ((0, 0), (0, 0), (0, 0), (0, 1)))
    here, step = (jnp.take_along_axis(entries, index, axis=-1, mode="promise_in_bounds") for entries in (x, steps))
    return here + (position - low) * step


def skew(x: Array, t: int, s: int) -> Array:
    """From one number per diagonal, `b h t n` or `b h 1 n`, to one per pair, `b h t s`; if n is s, x as it is.

    The skew of Huang et al. 2018 (arXiv:1809.04281): each row begins one diagonal further to the left than the row
    before, the last row with the first of the n = t + s - 1. The first query comes first, as `attend_in_row_blocks`
    passes rows. Flattened, taken from entry t - 1 on and cut into rows of n - 1, the array has the result in the first
    s of each row. A single row is doubled log2(t) times: each doubling appends the rows so far, shifted further left,
    so that only stretches are copied.
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
    """Diagonals in the order that `skew` takes where the rows are keys and the columns queries."""
    return x[..., ::-1]


def unskew(x: Array, n: int) -> Array:
    """One number per pair, `b h t s`, as one per diagonal, `b h t n`, 0 where there is none: `skew` in reverse."""
    b, h, t, s = x.shape
    flat = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, n - 1 - s))).reshape(b, h, t * (n - 1))
    return jnp.pad(flat, ((0, 0), (0, 0), (t - 1, 1))).reshape(b, h, t, n)


def clip(x: Array, low: int, high: int) -> Array:
    """Integers clamped to a range."""
    return jnp.clip(x, low, high)


def concrete(x: Array) -> bool:
    """Whether the values are known; under jit, compile and vmap they are not."""
    return not isinstance(x, Tracer)


def known_range(x: Array) -> tuple[Any, Any] | None:
    """The least and the largest entry, as Python's numbers; None where there are none or their values are not known."""
    if not concrete(x) or x.size == 0:
        return None
    known = np.asarray(x)  # within a compiled function JAX would make the least of a constant unknown
    return known.min().item(), known.max().item()


def shapes_may_depend_on_values(x: Array) -> bool:
    """Whether shapes may depend on values: eager NumPy and PyTorch, never JAX."""
    return False  # every new shape is compiled


def is_longer(t: int, n: int) -> bool:
    """Whether a length is above `n`; False in a program that is exported for any length, and must not depend on it."""
    return t > n


def cached_array(make: Callable[..., Any]) -> Callable[..., Array]:
    """`make(np, *values)` as a function of the values, whose results are cached, and constants under jit."""
    cached = lru_cache(maxsize=8)(partial(make, np))
    return lambda *args, like: jnp.asarray(cached(*args))


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans, a count."""
    return jnp.cumsum(x, axis=axis)


def sums_from(x: Array) -> Array:
    """For each entry of the last axis, the sum of it and of those after it."""
    return jax.lax.cumsum(x, axis=x.ndim - 1, reverse=True)


def write_slots(buffer: Array, slot: Array, x: Array) -> Array:
    """The buffer with slots written: `b s ...`, `b t`, `b t ...` -> `b s ...`. Under jit in place if it is donated."""
    return buffer.at[jnp.arange(buffer.shape[0])[:, None], slot].set(x)


def write_slice(buffer: Array, start: int, x: Array) -> Array:
    """The buffer with entries from slot `start` on: `b s ...`, `b t ...` -> `b s ...`. In place as `write_slots` is."""
    return buffer.at[:, start : start + x.shape[1]].set(x)


def write_positions(buffer: Array, start: int, stop: int) -> Array:
    """The buffer, `b s`, with slots start .. stop - 1 set to their own indices. Under jit in place if it is donated."""
    return buffer.at[:, start:stop].set(jnp.arange(start, stop))


def empty_slots(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`."""
    return zeros(shape, like)


def pytree(*, arrays: Sequence[str], static: Sequence[str]) -> Callable[[type], type]:
    """A decorator that makes a dataclass a pytree of some fields; the others are static."""
    return lambda cls: register_dataclass(cls, arrays, static)


def dtype_name(x: Any) -> str:
    return x.dtype.name


def check_dtype(variant: str, dtype: DType) -> str:
    """The name of a float dtype, if JAX can compute in it.

    Raises:
        ValueError: not a float type, or float64 while JAX has it switched off.
    """
    name = contract.check_dtype(variant, dtype)
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"{variant}: expected JAX to have float64 switched on, got jax_enable_x64=False; "
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
    """float32 for 16-bit types; other types, and None, stay as they are. Of a Param, its array."""
    x = x[...] if isinstance(x, nnx.Variable) else x
    return x.astype(jnp.float32) if x is not None and dtype_name(x) in ("float16", "bfloat16") else x


def to_dtype(x: Any, dtype: str) -> Any:
    """An array in a dtype, rounded once if it has fewer bits; None stays None."""
    return x if x is None or dtype_name(x) == dtype else x.astype(DTYPES.get(dtype, dtype))


def einsum(subscripts: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that are not in the output, in the inputs' precision.

    JAX multiplies float32 in TF32 or bfloat16 on accelerators by default; here float32 means float32. A caller who
    sets `jax_default_matmul_precision` gets that precision.
    """
    return (_product_of_block if _in_blocks.get() else _product)(subscripts, upcast(a), upcast(b))


def _product(subscripts: str, a: Array, b: Array) -> Array:
    asked = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    precision = None if asked else jax.lax.Precision.HIGHEST
    # JAX sums over axes in the order of the alphabet; in any but the first factor's XLA transposes both first.
    letters = dict.fromkeys(letter for letter in subscripts if letter.isalpha())
    factors, out = subscripts.translate({ord(x): chr(ord("a") + i) for i, x in enumerate(letters)}).split("->")
    of_a, of_b = factors.split(",")
    shared = "".join(x for x in out if x in of_a and x in of_b)
    # For another order JAX swaps the factors, and XLA writes the transpose of a block of scores before the product.
    in_order = shared + "".join(x for of_factor in (of_a, of_b) for x in of_factor if x in out and x not in shared)
    sharding = _out_sharding(f"{factors}->{in_order}", a, b)
    product = jnp.einsum(f"{factors}->{in_order}", a, b, precision=precision, out_sharding=sharding)
    return product if in_order == out else product.transpose([in_order.index(x) for x in out])


def _out_sharding(subscripts: str, a: Array, b: Array) -> P | None:
    """The sharding of a product on a mesh with explicit axes, each axis as in its factor; None elsewhere.

    JAX leaves it to the caller how sums over a sharded axis are sharded.
    """
    shardings = jax.typeof(a).sharding, jax.typeof(b).sharding
    if not any(AxisType.Explicit in sharding.mesh.axis_types for sharding in shardings):
        return None
    factors, out = subscripts.split("->")
    axes: dict[str, Any] = {}
    for letters, sharding in zip(factors.split(","), shardings, strict=True):
        axes |= {letter: axis for letter, axis in zip(letters, sharding.spec, strict=True) if axis is not None}
    return P(*(axes.get(letter) for letter in out))


_in_blocks: ContextVar[bool] = ContextVar("in_blocks", default=False)


@contextmanager
def products_of_blocks() -> Iterator[None]:
    """Within, `einsum` has derivatives in reverse mode alone, which never turn a block of scores round.

    As JAX writes the gradient of a block's keys, XLA on a CPU turns the gradient of the scores round for it: four times
    as long as the product itself.
    """
    token = _in_blocks.set(True)
    try:
        yield
    finally:
        _in_blocks.reset(token)


def _product_of_block(subscripts: str, a: Array, b: Array) -> Array:
    # In `shard_map` an array that devices share becomes each one's own by a zero, so that JAX sums its gradient.
    zero = jnp.zeros_like(jnp.sum(a) + jnp.sum(b))
    return _by_own_rule(subscripts, a + zero, b + zero)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_own_rule(subscripts: str, a: Array, b: Array) -> Array:
    return _product(subscripts, a, b)


def _by_own_rule_bwd(subscripts: str, factors: tuple[Array, Array], dout: Array) -> tuple[Array, Array]:
    """The gradient of b sums over rows: the larger of the two arrays, a block of scores, comes second, as it lies."""
    (a, b), (of_a, of_b, out) = factors, subscripts.replace("->", ",").split(",")
    da = _product(f"{out},{of_b}->{of_a}", dout, b)
    small, large = ((out, dout), (of_a, a)) if a.size > dout.size else ((of_a, a), (out, dout))
    return da, _product(f"{small[0]},{large[0]}->{of_b}", small[1], large[1])


_by_own_rule.defvjp(lambda subscripts, a, b: (_product(subscripts, a, b), (a, b)), _by_own_rule_bwd)


def linear(subscripts: str, x: Array, weight: Array, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one."""
    y = _project(subscripts, upcast(x), upcast(weight))
    return y if bias is None else y + upcast(bias)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _project(subscripts: str, x: Array, weight: Array) -> Array:
    """The product, with derivatives for which XLA on a CPU need not copy a weight transposed."""
    return einsum(subscripts, x, weight)


@partial(_project.defjvp, symbolic_zeros=True)
def _project_jvp(subscripts: str, primals: Any, tangents: Any) -> Any:
    """x is transposed where the gradient of the weight needs it; without the barrier XLA would undo that."""
    (x, weight), (dx, dweight) = primals, tangents
    y = _project(subscripts, x, weight)
    dy = jnp.zeros_like(y)
    if not isinstance(dx, SymbolicZero):
        dy = dy + einsum(subscripts, dx, weight)
    if not isinstance(dweight, SymbolicZero):
        factors, out = subscripts.split("->")
        of_x, of_weight = factors.split(",")
        letters = "".join(sorted(of_x, key=lambda letter: letter in out))  # those of the sum first
        across = reorder(x, [of_x.index(letter) for letter in letters])
        dy = dy + einsum(f"{letters},{of_weight}->{out}", jax.lax.optimization_barrier(across), dweight)
    return y, dy


def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product."""
    return a + z * (b - a)


def l2_normalize(x: Array, eps: float) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * upcast(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """The deviation from the mean over the last axis, by `rms_norm`, plus a bias (Ba et al. 2016, equation 4)."""
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
    top = jnp.max(jax.lax.stop_gradient(scores), axis=axis, keepdims=True, initial=-jnp.inf)
    e = exp(scores - where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(e, axis=axis, keepdims=True)
    overflowed = top == -jnp.inf
    if allowed is not None:
        overflowed = overflowed & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    total = where(overflowed, jnp.nan, total)
    return e / where(total == 0, 1.0, total)


def softmax_and_lse(scores: Array, allowed: Array | None) -> tuple[Array, Array]:
    """The weights of a softmax over the keys and the logarithm of each row's sum of exponentials, `b h t`.

    Where no key is allowed the weights are 0 and the logarithm is -inf.
    """
    scores = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(scores, -1)[..., None]
    top = where(top == float("-inf"), 0.0, top)
    weights = exp(scores - top)
    total = weights.sum(-1)[..., None]
    nothing = total == 0
    total = where(nothing, 1.0, total)
    return weights / total, where(nothing, float("-inf"), top + log(total))[..., 0]


def repeat_heads(x: Array, q: Array) -> Array:
    """The key/value head of every query head: query head h uses head h // r. Without a head axis, x itself."""
    if x.ndim == 3 or x.shape[2] == q.shape[2]:
        return x
    return x[:, :, arange(q.shape[2], q) // (q.shape[2] // x.shape[2])]


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """The weights, 0 where `keep` is False, the others divided by 1 - rate."""
    return weights if keep is None else where(keep, weights / (1.0 - rate), 0.0)


# Scans ----------------------------------------------------------------------------------------------------------------


def iterate(step: Callable[[Any], Any], carry: Any, times: int) -> Any:
    """The carry after `times` steps `carry = step(carry)`."""
    return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), carry)


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function: outside loops XLA plans by itself what is kept for the backward pass."""
    return function


def scan(
    step: Callable[..., Any],
    carry: Any,
    xs: tuple[Any, ...],
    *,
    names: tuple[str, ...],
    tape: Tape = None,
    reverse: bool = False,
    shared: tuple[Any, ...] = (),
) -> tuple[Any, tuple[Array, ...]]:
    """The last carry and the stacked ys of `carry, ys = step(carry, xs at one time)` along axis 1.

    The tape gets the stacked ys by `names`. An x that is None stays None in every step.
    With `shared`, what every step reads besides, it is `step(carry, xs, *shared)`, and the backward pass computes it
    again and keeps its carry alone.
    """
    xs = tuple(None if x is None else jnp.moveaxis(x, 1, 0) for x in xs)
    once = jax.checkpoint(step, prevent_cse=False) if shared else step
    carry, stacked = jax.lax.scan(lambda carry, xs: once(carry, xs, *shared), carry, xs, reverse=reverse)
    stacked = tuple(jnp.moveaxis(y, 0, 1) for y in stacked)
    out = record(tape, **dict(zip(names, stacked, strict=True)))
    return carry, out if isinstance(out, tuple) else (out,)
