"""JAX's dialect: the operations that every variant is written in, under the names they have in all three trees."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.nn import sigmoid
from jax.numpy import broadcast_to, concatenate, exp, log, maximum, sqrt, stack, tanh, where

from attn_np.contract import Config, check_config, check_dtype, check_tokens, declared, record, scope, within
from attn_np.contract._band import Band

__all__ = [
    "Array",
    "Layer",
    "Output",
    "Sight",
    "Tape",
    "amax",
    "arange",
    "argmax",
    "broadcast_to",
    "clip",
    "concatenate",
    "concrete",
    "constant",
    "constants",
    "cumsum",
    "dropout",
    "dtype_name",
    "einsum",
    "entmax15",
    "exp",
    "hardmax",
    "hide",
    "inputs",
    "known",
    "l2_norm",
    "layer_norm",
    "lerp",
    "linear",
    "log",
    "maximum",
    "narrow",
    "number",
    "output",
    "pick",
    "put",
    "record",
    "repeat_heads",
    "rms_norm",
    "rooms",
    "scan",
    "scope",
    "seen",
    "shown",
    "sight",
    "sigmoid",
    "signature",
    "silu",
    "softmax",
    "softplus",
    "sparsemax",
    "specs",
    "sqrt",
    "stack",
    "straight_through",
    "take",
    "tanh",
    "visible",
    "where",
    "widen",
    "write",
    "zeros",
]

if TYPE_CHECKING:
    Array = jax.Array
else:
    Array = jax.Array | np.ndarray | nnx.Variable  # a call may be given NumPy's arrays, and parameters are nnx.Params

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True
Tape = Any  # a dictionary of named intermediates, or None

DTYPES = {
    "float64": jnp.float64,
    "float32": jnp.float32,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
}


# Arrays ---------------------------------------------------------------------------------------------------------------


def amax(x: Array, axis: int) -> Array:
    """Largest entry of an axis, without a gradient: subtracted from every score before `exp`, it cancels."""
    return jnp.max(jax.lax.stop_gradient(x), axis=axis)


def arange(n: int, like: Array) -> Array:
    """0 .. n - 1, on the device of another array."""
    return jnp.arange(n)


def argmax(x: Array, axis: int) -> Array:
    """Index of the largest entry; the lowest index among equals."""
    return jnp.argmax(x, axis=axis)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    return jnp.zeros(shape, like.dtype)


def constants(values: Sequence[float | int], like: Array) -> Array:
    """Numbers known beforehand, each rounded once to the dtype of another array."""
    return jnp.asarray(np.array(values, np.float64).astype(like.dtype))


def take(table: Array, tokens: Array) -> Array:
    """Rows of a table: `u d`, `b t` -> `b t d`. A traced token beyond the table gives NaN, never another row."""
    if tokens.size and concrete(tokens):
        check_tokens(int(tokens.min()), int(tokens.max()), table.shape[0])
    tokens = where(tokens < 0, table.shape[0], tokens)
    return jnp.take(widen(table), tokens, axis=0, mode="fill", fill_value=jnp.nan)


def pick(x: Array, index: Array) -> Array:
    """Entries of the last axis, the same for every head: `b h t x`, `b t s` -> `b h t s`; a batch of 1 serves all."""
    b, h, t, _ = x.shape
    index = broadcast_to(index[:, None], (b, h, t, index.shape[-1]))
    return jnp.take_along_axis(x, index, axis=-1)


def clip(x: Array, low: int, high: int) -> Array:
    """Integers drawn into a range."""
    return jnp.clip(x, low, high)


def concrete(x: Array) -> bool:
    """Whether the numbers are known now; under jit, compile and vmap they are not."""
    return not isinstance(x, Tracer)


def known(x: Array) -> bool:
    """Whether shapes may follow from numbers: where a new shape costs nothing, and the numbers are known."""
    return False  # every shape is compiled for


def constant(make: Callable[..., np.ndarray]) -> Callable[..., Array]:
    """A function of plain values that makes an array by NumPy: kept, and a constant under jit and compile."""
    kept = lru_cache(maxsize=8)(make)
    return lambda *args, like: jnp.asarray(kept(*args))


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans a count."""
    return jnp.cumsum(x, axis=axis)


def write(buffer: Array, slot: Array, x: Array) -> Array:
    """Put entries into slots: `b s ...`, `b t`, `b t ...` -> `b s ...`. Under jit in place if the buffer is donated."""
    return buffer.at[jnp.arange(buffer.shape[0])[:, None], slot].set(x)


def put(buffer: Array, start: int, x: Array) -> Array:
    """Put entries side by side into every row: `b s ...`, a slot, `b t ...` -> `b s ...`. In place as `write` is."""
    return buffer.at[:, start : start + x.shape[1]].set(x)


def number(buffer: Array, start: int, stop: int) -> Array:
    """Put its own number into every slot of a stretch: `b s`. Under jit in place if the buffer is donated."""
    return buffer.at[:, start:stop].set(jnp.arange(start, stop))


def rooms(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`."""
    return zeros(shape, like)


def dtype_name(x: Any) -> str:
    return x.dtype.name


def widen(x: Any) -> Any:
    """16-bit types are computed in float32; other types, and None, stay as they are. A Param gives its array."""
    x = x[...] if isinstance(x, nnx.Variable) else x
    return x.astype(jnp.float32) if x is not None and dtype_name(x) in ("float16", "bfloat16") else x


def narrow(x: Any, dtype: str) -> Any:
    """Round a result once to the layer's dtype."""
    return x if x is None or dtype_name(x) == dtype else x.astype(DTYPES.get(dtype, dtype))


def einsum(spec: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that the output lacks, in the inputs' precision unless the caller asks for less.

    JAX multiplies float32 in TF32 or bfloat16 on accelerators by default; here float32 means float32. A caller who
    sets `jax_default_matmul_precision` gets what it says.
    """
    asked = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    precision = None if asked else jax.lax.Precision.HIGHEST
    return jnp.einsum(spec, widen(a), widen(b), precision=precision)


def linear(spec: str, x: Array, weight: Array, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one."""
    factors, out = spec.split("->")
    left, right = factors.split(",")
    n = len(set(left) & set(right))
    if (left[-n:], out) == (right[:n], left[:-n] + right[n:]):  # nothing has to be moved
        x, weight = widen(x), widen(weight)
        rows, between, columns = x.shape[:-n], prod(weight.shape[:n]), weight.shape[n:]
        y = _project(x.reshape(prod(rows), between), weight.reshape(between, prod(columns))).reshape(rows + columns)
    else:
        y = einsum(spec, x, weight)
    return y if bias is None else y + widen(bias)


@jax.custom_jvp
def _project(x: Array, weight: Array) -> Array:
    """A product of two matrices, with derivatives for which XLA on a CPU need not copy a weight transposed."""
    return einsum("td,dn->tn", x, weight)


@partial(_project.defjvp, symbolic_zeros=True)
def _project_jvp(given: Any, slopes: Any) -> Any:
    """x is turned around where the gradient of the weight needs it; without the barrier XLA would undo that."""
    (x, weight), (dx, dweight) = given, slopes
    y = _project(x, weight)
    dy = zeros(y.shape, y)
    if not isinstance(dx, SymbolicZero):
        dy = dy + einsum("td,dn->tn", dx, weight)
    if not isinstance(dweight, SymbolicZero):
        dy = dy + einsum("dt,dn->tn", jax.lax.optimization_barrier(x.T), dweight)
    return y, dy


def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product: where z is near 0 or 1 the result is a or b."""
    return a + z * (b - a)


def l2_norm(x: Array, eps: float) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(jnp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * widen(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """The deviation from the mean over the last axis, by `rms_norm`, plus a bias (Ba et al. 2016, equation 4)."""
    unit = rms_norm(x - jnp.sum(x, axis=-1, keepdims=True) / x.shape[-1], weight, eps)
    return unit if bias is None else unit + widen(bias)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018, also called swish)."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return jnp.logaddexp(x, 0.0)


def softmax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """Normalise over the allowed entries of an axis; where none is allowed the weights are 0.

    Hidden entries are selected to -inf, so their value never enters, and the largest score is subtracted, so that
    `exp` cannot overflow. Allowed scores that are all -inf have overflowed: their weights are NaN, not 0.
    """
    if allowed is not None:
        scores = where(allowed, scores, -jnp.inf)
    top = jnp.max(jax.lax.stop_gradient(scores), axis=axis, keepdims=True, initial=-jnp.inf)
    e = exp(scores - where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(e, axis=axis, keepdims=True)
    lost = top == -jnp.inf
    if allowed is not None:
        lost = lost & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    total = where(lost, jnp.nan, total)
    return e / where(total == 0, 1.0, total)


def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: the largest of (sum of the k largest - 1)
    / k over all k. Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does
    an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -jnp.inf)
    n = scores.shape[axis]
    if n == 0:
        return scores
    top = jnp.max(jax.lax.stop_gradient(z), axis=axis, keepdims=True)
    lost = top == -jnp.inf
    z = z - where(lost, 0.0, top)
    ranks = cumsum(zeros((n,), z) + 1.0, 0).reshape(
        (n,) + (1,) * ((scores.ndim - 1 - axis) if axis >= 0 else (-1 - axis))
    )
    fixed = jax.lax.stop_gradient(z)
    tau = jnp.max((cumsum(-jnp.sort(-fixed, axis=axis), axis) - 1.0) / ranks, axis=axis, keepdims=True)
    tau = where(lost, 0.0, tau)
    # The gradient of a maximum is shared where a score lies at tau itself; that of the mean over the support is not.
    support = fixed > tau
    count = jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype)
    mean = jnp.sum(where(support, z, 0.0), axis=axis, keepdims=True) / where(count == 0, 1.0, count)
    weights = where(support, z - (tau + (mean - jax.lax.stop_gradient(mean))), 0.0)
    if allowed is not None:
        lost = lost & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return where(lost | ~(top < jnp.inf), jnp.nan, weights)


def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: for the k largest z the
    smaller root of sum (z - tau)^2 = 1, over the most k whose smallest z is no less. Where nothing is allowed the
    weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else where(allowed, scores, -jnp.inf)
    if scores.shape[axis] == 0:
        return scores
    top = jnp.max(jax.lax.stop_gradient(z), axis=axis, keepdims=True)
    lost = top == -jnp.inf
    z = (z - where(lost, 0.0, top)) / 2.0
    fixed = jax.lax.stop_gradient(z)
    # One largest z alone gives tau = -1, so what is below -1 weighs nothing.
    x = -jnp.sort(-maximum(fixed, -1.0), axis=axis)
    k = cumsum(0.0 * x + 1.0, axis)
    mean = cumsum(x, axis) / k
    # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford 1962).
    apart = cumsum((x - mean) * (x - mean) * (k / maximum(k - 1.0, 1.0)), axis)
    tau = mean - sqrt(maximum(1.0 - apart, 0.0) / k)
    tau = jnp.max(where(tau <= x, tau, -1.0), axis=axis, keepdims=True)
    # tau has no gradient so far. The root of the same equation, counted from tau, is 0 and moves as tau does.
    support = fixed > tau
    root = where(support, z - tau, 0.0)
    size = where(lost, 1.0, jnp.sum(root, axis=axis, keepdims=True))
    count = jnp.sum(support, axis=axis, keepdims=True, dtype=z.dtype)
    excess = jnp.sum(root * root, axis=axis, keepdims=True)
    excess = excess - jax.lax.stop_gradient(excess)
    root = where(support, root - excess / (size + sqrt(size * size - count * excess)), 0.0)
    if allowed is not None:
        lost = lost & jnp.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return where(lost | ~(top < jnp.inf), jnp.nan, root * root)


def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z = jax.lax.stop_gradient(scores)
    z = z if allowed is None else where(allowed, z, -jnp.inf)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    top = jnp.max(z, axis=-1, keepdims=True)
    some = top > -jnp.inf
    if allowed is not None:
        some = some | ~jnp.any(allowed, axis=-1, keepdims=True)
        chosen = chosen & allowed
    return where(some & (top < jnp.inf), chosen.astype(z.dtype), jnp.nan)


def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard + (soft - jax.lax.stop_gradient(soft))


# Who sees whom --------------------------------------------------------------------------------------------------------


def visible(
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    past: Any = None,
) -> Array | None:
    """Mask, causality and window as one boolean array, broadcastable to the scores; None where every key is seen.

    Query i stands at position i + s - t: the last query stands at the last key. In a step of decoding queries and keys
    stand where the cache says.
    """
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    if past is not None and past.start is None:
        near = past.visible(left, right)
    elif left is None and right is None:
        return mask
    else:
        s = s if past is None else past.start + t
        ahead = arange(s, like)[None, :] - (arange(t, like)[:, None] + (s - t))
        near = ahead == ahead
        near = near if right is None else near & (ahead <= right)
        near = near if left is None else near & (ahead >= -left)
    return near if mask is None else near & mask


class Sight:
    """Who sees whom, before anybody asks for it as an array.

    Most layers only want to know which keys no query sees and which queries see no key. Without a mask two numbers say
    it, with a mask of the keys alone one count along them.
    """

    def __init__(self, mask: Array | None, band: Band, like: Array) -> None:
        self.mask, self.band, self.like = mask, band, like

    def keys(self) -> Array | None:
        """Which keys some query sees, by the axes of the mask, its queries' axis 1; `s` without one, None for all."""
        first = self.band.first_key()
        near = None if first == 0 else arange(self.band.s, self.like) >= first
        return self.mask if near is None else near if self.mask is None else near & self.mask

    def queries(self) -> Array | None:
        """Which queries see some key, by the axes of the mask, its keys' axis 1; `t 1` without one, None for all."""
        first, t = self.band.first_query(), self.band.t
        if self.mask is None:
            return None if first == 0 else (arange(t, self.like) >= first)[:, None]
        count = cumsum(self.mask, -1)
        count = concatenate([0 * count[..., :1], count], -1)
        at, left, right = arange(t, self.like) + (self.band.s - t), self.band.left, self.band.right
        start = clip(at - (self.band.s if left is None else left), 0, self.band.s)
        stop = clip(at + (self.band.s + t if right is None else right) + 1, 0, self.band.s)
        some = count[..., stop] > count[..., start]
        return some[:, None] if some.ndim == 1 else some.swapaxes(-1, -2)


def sight(
    tape: Tape,
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    past: Any = None,
) -> Any:
    """What `visible` gives; without a tape a `Sight`, where that can stand for it: `seen` and `hide` take both."""
    ordered = past is None or past.start is not None
    s = past.filled if past is not None and ordered else s
    of_keys = mask is None or (mask.shape[-1] == s and (mask.ndim == 1 or mask.shape[-2] == 1))
    if tape is None and ordered and of_keys and s > 0:
        return Sight(mask, Band.of(t, s, causal, window), like)
    return visible(mask, t, s, like=like, causal=causal, window=window, past=past)


def seen(spec: str, allowed: Any) -> Any:
    """Which keys any query sees, by the axes of the keys and broadcastable to them: `seen("bhts->bs", allowed)`;
    None where a `Sight` knows that all are seen.
    """
    source, target = spec.split("->")
    if isinstance(allowed, Sight):
        allowed = allowed.keys() if "s" in target else allowed.queries()
        if allowed is None:
            return None
    allowed = allowed.reshape((1,) * (len(source) - allowed.ndim) + allowed.shape)
    some = jnp.any(allowed, axis=tuple(i for i, letter in enumerate(source) if letter not in target))
    letters = [letter for letter in source if letter in target]
    some = some.transpose([letters.index(letter) for letter in target if letter in letters])
    return some[tuple(slice(None) if letter in letters else None for letter in target)]


def shown(allowed: Array | None, bias: Array | None) -> Array | None:
    """What may be seen when a bias is added: where it is -inf it hides, as a mask does."""
    if bias is None:
        return allowed
    near = bias != -jnp.inf
    return near if allowed is None else near & allowed


def hide(spec: str, allowed: Any, x: Any) -> Any:
    """Select to 0 the keys that no query sees, `hide("bhts->bshk", allowed, k)`, or the queries that see no key,
    `hide("bhts->bthk", allowed, q)`: nothing they hold can leak, into outputs or gradients.
    """
    some = None if allowed is None else seen(spec, allowed)
    return x if some is None else where(some, x, 0.0)


def repeat_heads(x: Array, q: Array) -> Array:
    """Give every query head its key/value head: query head h uses head h // r. Without a head axis nothing to do."""
    if x.ndim == 3 or x.shape[2] == q.shape[2]:
        return x
    return x[:, :, arange(q.shape[2], q) // (q.shape[2] // x.shape[2])]


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """Set the weights to 0 that a keep-mask drops and divide the others by the share kept."""
    return weights if keep is None else where(keep, weights / (1.0 - rate), 0.0)


# Scans ----------------------------------------------------------------------------------------------------------------


def scan(
    step: Callable[..., Any],
    carry: Any,
    xs: tuple[Any, ...],
    *,
    names: tuple[str, ...],
    tape: Tape = None,
    reverse: bool = False,
) -> tuple[Any, tuple[Array, ...]]:
    """Run `carry, ys = step(carry, xs at one time)` along axis 1 and stack the ys; the tape gets them by `names`.

    An x that is None stays None in every step.
    """
    xs = tuple(None if x is None else jnp.moveaxis(x, 1, 0) for x in xs)
    carry, stacked = jax.lax.scan(step, carry, xs, reverse=reverse)
    stacked = tuple(jnp.moveaxis(y, 0, 1) for y in stacked)
    out = record(tape, **dict(zip(names, stacked, strict=True)))
    return carry, out if isinstance(out, tuple) else (out,)


# Layers ---------------------------------------------------------------------------------------------------------------


def inputs(
    tape: Tape,
    axes: str,
    allowed: Array | None,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    past: Any = None,
) -> tuple[Array, Array, Array]:
    """Widen the inputs, let one stand in for those left out; keys nobody sees and queries that see none become 0.

    The tape gets what was given: `x` alone for self-attention, else `query`, `key` and `value`; and what goes on. In a
    step of decoding new positions that are not real become 0.
    """
    if key is None and value is None:
        query = key = value = record(tape, x=widen(query))
    else:
        query, key, value = record(tape, query=widen(query), key=widen(key), value=widen(value))
        key = query if key is None else key
        value = key if value is None else value
    if past is None:
        query = hide(f"{axes}->btd", allowed, query)
        key, value = hide(f"{axes}->bsi", allowed, key), hide(f"{axes}->bsj", allowed, value)
    elif past.real is not None:
        given: tuple[Any, ...] = (query, key, value)
        query, key, value = (where(past.real[:, :, None], x, 0.0) for x in given)
    allowed = record(tape, allowed=allowed)
    return record(tape, seen_query=query, seen_key=key, seen_value=value)


def output(dtype: str, y: Array, weights: Array | None, return_weights: bool) -> Output:
    """Round the results once to the inputs' dtype; y alone, or with the weights where they are asked for."""
    return (narrow(y, dtype), narrow(weights, dtype)) if return_weights else narrow(y, dtype)


class Layer(nnx.Module, Generic[C]):
    """Base of the layers: the contract's parameters as `nnx.Param`s under their names, and the call's check.

    Args:
        config: the contract's Config.
        rngs: draws the parameters (stream `params`) and, in training, dropout (stream `dropout`).
        dtype: of inputs and outputs; `param_dtype` by default.
        param_dtype: of the parameters; float32 by default.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    def __init__(
        self,
        config: C,
        *,
        rngs: nnx.Rngs,
        dtype: Any = None,
        param_dtype: Any = "float32",
        _values: dict[str, Array] | None = None,
    ) -> None:
        check_config(type(self), config)
        kind = DTYPES[check_dtype_on(config.variant, param_dtype)]
        self.config, self.deterministic = config, False
        self.dtype = check_dtype_on(config.variant, param_dtype if dtype is None else dtype)
        if kind == jnp.float64 and self.dtype != "float64":
            raise ValueError(
                f"{config.variant}: expected float64 inputs for float64 parameters, got dtype={self.dtype!r}; "
                "leave dtype out, or set param_dtype to it"
            )
        if getattr(config, "dropout", 0) and not {"dropout", "default"} & set(rngs):
            raise ValueError(
                f"{config.variant}: expected rngs with a stream for dropout, got {', '.join(rngs) or 'none'}; "
                "pass nnx.Rngs(params=..., dropout=...) or nnx.Rngs(seed)"
            )
        self.rngs: Any = rngs.dropout.fork() if getattr(config, "dropout", 0) else None
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        for name in declared(type(self)):
            if name not in own and name not in children:
                setattr(self, name, None)
        for name in own:
            limit, start = fans[name] ** -0.5, own[name].first()
            if _values is not None:
                value = jnp.asarray(_values[name], kind)
            elif start is not None:
                value = jnp.full(shapes[name], np.array(start), kind)
            else:
                value = jax.random.uniform(rngs.params(), shapes[name], kind, -limit, limit)
            setattr(self, name, nnx.Param(value))
        for name, child in children.items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            built = [self._child(part, within(_values, p), rngs, dtype, param_dtype) for p, part in parts.items()]
            setattr(self, name, nnx.List(built) if isinstance(child, list) else built[0])

    def _child(self, config: Any, values: Any, rngs: nnx.Rngs, dtype: Any, param_dtype: Any) -> "Layer[Any]":
        cls = getattr(import_module(f"{__package__}.{config.variant}"), config.layer)
        return cls(config, rngs=rngs, dtype=dtype, param_dtype=param_dtype, _values=values)

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        found = {".".join(map(str, path)): leaf.get_value() for path, leaf in flat}
        return {name: found[name] for name in self.config.params()}

    def set_params(self, values: dict[str, Array]) -> None:
        """Put arrays in the place of the parameters, by dotted name, on the devices where those are."""
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        placed = [
            (path, leaf.replace(jax.device_put(jnp.array(values[".".join(map(str, path))]), leaf.get_value().sharding)))
            for path, leaf in flat
        ]
        nnx.update(self, nnx.from_flat_state(placed))

    def check(self, **given: Array | None) -> dict[str, int]:
        """Refuse arguments that cannot be right; sizes of all axis letters."""
        config = self.config

        def check() -> dict[str, int]:
            if config.params():
                return config.check(self.dtype, **{n: spec_of(config.variant, n, x) for n, x in given.items()})
            return config.check(None, **specs(config.variant, **given))

        return config.remembered(signature(self.dtype, given), check)

    def init_cache(self, batch_size: int, max_length: int, *, dtype: Any = None, **sizes: int) -> Any:
        """An empty cache to decode with, by `step`.

        Args:
            batch_size: how many sequences.
            max_length: how many positions each may have.
            dtype: that keys, values and states are kept in; by default the layer's, but states, whose roundings would
                add up from step to step, in float32 in the place of 16 bits.
            sizes: of axis letters that the config leaves open, such as k=64, v=64 for `dot_product`.

        Raises:
            ValueError: a layer that does not decode, or sizes below 1.
        """
        from attn_jax._cache import empty_cache  # it is written in this module's operations

        kind = check_dtype_on(self.config.variant, dtype or self.dtype)
        like = jnp.zeros((), DTYPES[kind])
        return empty_cache(self.config, batch_size, max_length, sizes, like, widen(like) if dtype is None else like)

    def step(
        self, query: Array, cache: Any, *, valid: Array | None = None, tape: Tape = None, **arguments: Array
    ) -> tuple[Array, Any]:
        """Go on with sequences: the outputs of new positions, and the cache with them in it.

        Positions that are not real, such as padding on either side, take no place: every sequence goes on from its own
        length. Their outputs say nothing. The cache that goes in is used up; `cache.copy()` before keeps it.

        Args:
            query: `b t d`, the new positions, one or many.
            cache: from `init_cache` or the step before.
            valid: `b t`, True = a real position; all of them by default.
            tape: gets every named intermediate.
            arguments: what else the layer takes of new positions. No mask, bias or keep: their keys would be slots of
                the cache; no `return_weights` either: the tape has them.

        Raises:
            TypeError: a cache of another package, or none.
            ValueError: a cache of another layer, or no room in it, where the lengths are known. Under jit and compile
                nothing is written then, the outputs without room are NaN and `cache.overrun` says so.
        """
        from attn_jax._cache import Cache, closed, opened  # it is written in this module's operations
        from attn_np.contract._decode import check_given, check_step

        given = check_given(self.config, cache, Cache, **arguments)
        config, dropping = self.config, not self.deterministic

        def check() -> dict[str, int]:
            sizes, v = self.check(query=query, **given), config.variant
            held = {name: spec_of(v, f"the cache's {name}", x) for name, x in cache.arrays.items()}
            check_step(config, dropping, sizes, spec_of(v, "valid", valid), held, cache.max_length)
            return sizes

        new = {"query": query, **given, "valid": valid}
        words = "step", self.dtype, dropping, cache.max_length
        config.remembered(signature(words, new, cache.arrays), check)
        past = opened(self.config, cache, query, valid)
        return closed(past, self(query, past=past, tape=tape, **arguments))

    def draw_keep(self, keep: Array | None, shape: tuple[int, ...], like: Array) -> Array | None:
        """The keep-mask of this call: the one given, in training a random one, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or self.deterministic or rate == 0:
            return keep
        return jax.random.bernoulli(self.rngs(), 1 - rate, shape)


def check_dtype_on(variant: str, dtype: Any) -> str:
    """The name of a float dtype that JAX will really use.

    Raises:
        ValueError: not a float type, or float64 while JAX has it switched off.
    """
    name = check_dtype(variant, dtype)
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"{variant}: expected JAX to have float64 switched on, got jax_enable_x64=False; "
            'call jax.config.update("jax_enable_x64", True) first, or set dtype="float32"'
        )
    return name


def specs(variant: str, **given: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every argument, as the contract's checks take them; None where it was left out.

    Where no parameters say which dtype is meant, NumPy's float64 is refused while JAX would make float32 of it.
    """
    if any(isinstance(x, np.ndarray) and dtype_name(x) == "float64" for x in given.values()):
        check_dtype_on(variant, "float64")
    return {name: spec_of(variant, name, x) for name, x in given.items()}


def signature(words: Any, *given: dict[str, Array | None]) -> Any:
    """What a check sees of a call, as a key: whose check, some words, then the type, shape and dtype of every array.

    None where it must look itself.
    """
    every = [(n, x) for some in given for n, x in some.items() if x is not None]
    # What is traced is looked at once anyway. NumPy's float64 passes or not as JAX is set.
    if not all(isinstance(x, jax.Array) and not isinstance(x, Tracer) for _, x in every):
        return None
    return __name__, words, *[(n, type(x), x.shape, x.dtype) for n, x in every]


def spec_of(variant: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{variant}: expected {name} as a jax.Array, got {type(x).__name__}; convert it")
    return tuple(x.shape), dtype_name(x)
