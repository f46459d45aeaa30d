"""NumPy's dialect: the operations that every variant is written in, under the names they have in all three trees."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

import ml_dtypes
import numpy as np

from attn_np.contract import Config, at_step, check_config, check_dtype, check_tokens, declared, record, scope, within
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
    Array = np.ndarray
else:
    Array = Any  # any array that speaks NumPy's protocols: the judge's arrays carry an error bound through this file

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True
Tape = Any  # a dictionary of named intermediates, or None

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def primitive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let an array type take over a function of ours, by NumPy's own protocol (NEP 18).

    A subclass of ndarray that overrides nothing, such as a memmap, is taken as an ndarray.
    """
    plain = np.ndarray.__array_function__

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            handler = getattr(type(arg), "__array_function__", None)
            if handler is not None and handler is not plain:
                return handler(arg, call, (type(arg),), args, kwargs)
        return function(*args, **kwargs)

    return wraps(function)(call)


# Arrays ---------------------------------------------------------------------------------------------------------------

exp, log, tanh, sqrt, where, maximum = np.exp, np.log, np.tanh, np.sqrt, np.where, np.maximum
broadcast_to, concatenate, stack, argmax = np.broadcast_to, np.concatenate, np.stack, np.argmax


@primitive
def amax(x: Array, axis: int) -> Array:
    """Largest entry of an axis, without a gradient: subtracted from every score before `exp`, it cancels."""
    return np.max(x, axis=axis)


def arange(n: int, like: Array) -> Array:
    """0 .. n - 1, on the device of another array."""
    return np.arange(n)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    return np.zeros(shape, like.dtype)


@primitive
def constants(values: Sequence[float | int], like: Array) -> Array:
    """Numbers known beforehand, each rounded once to the dtype of another array."""
    return np.array(values, np.float64).astype(like.dtype)


def take(table: Array, tokens: Array) -> Array:
    """Rows of a table: `u d`, `b t` -> `b t d`."""
    if tokens.size:
        check_tokens(int(tokens.min()), int(tokens.max()), table.shape[0])
    return widen(table)[tokens]


def pick(x: Array, index: Array) -> Array:
    """Entries of the last axis, the same for every head: `b h t x`, `b t s` -> `b h t s`; a batch of 1 serves all."""
    b, h, t, _ = x.shape
    index = broadcast_to(index[:, None], (b, h, t, index.shape[-1]))
    return np.take_along_axis(x, index, -1)


def clip(x: Array, low: int, high: int) -> Array:
    """Integers drawn into a range."""
    return np.clip(x, low, high)


def concrete(x: Array) -> bool:
    """Whether the numbers are known now; under jit, compile and vmap they are not."""
    return True


def known(x: Array) -> bool:
    """Whether shapes may follow from numbers: where a new shape costs nothing, and the numbers are known."""
    return True


def constant(make: Callable[..., np.ndarray]) -> Callable[..., Array]:
    """A function of plain values that makes an array by NumPy: kept, and a constant under jit and compile."""
    kept = lru_cache(maxsize=8)(make)
    return lambda *args, like: kept(*args)


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans a count."""
    return np.cumsum(x, axis=axis)


def write(buffer: Array, slot: Array, x: Array) -> Array:
    """Put entries into slots: `b s ...`, `b t`, `b t ...` -> `b s ...`. In place: the buffer is used up."""
    buffer[np.arange(buffer.shape[0])[:, None], slot] = x
    return buffer


def put(buffer: Array, start: int, x: Array) -> Array:
    """Put entries side by side into every row: `b s ...`, a slot, `b t ...` -> `b s ...`. In place as `write` is."""
    buffer[:, start : start + x.shape[1]] = x
    return buffer


def number(buffer: Array, start: int, stop: int) -> Array:
    """Put its own number into every slot of a stretch: `b s`. In place."""
    buffer[:, start:stop] = np.arange(start, stop)
    return buffer


def rooms(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`; a head's entries `b s h k` lie side by side in memory."""
    if len(shape) != 4:
        return zeros(shape, like)
    b, s, h, k = shape
    return zeros((b, h, s, k), like).swapaxes(1, 2)


def dtype_name(x: Array) -> str:
    return x.dtype.name


def widen(x: Any) -> Any:
    """16-bit types are computed in float32; other types, and None, stay as they are."""
    return x.astype(np.float32) if x is not None and dtype_name(x) in ("float16", "bfloat16") else x


def narrow(x: Any, dtype: str) -> Any:
    """Round a result once to the layer's dtype."""
    return x if x is None or dtype_name(x) == dtype else x.astype(DTYPES.get(dtype, dtype))


@primitive
def einsum(spec: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that the output lacks; one batched matrix product on every NumPy."""
    left, right, out = spec.replace("->", ",").split(",")
    batch = [x for x in left if x in right and x in out]
    summed = [x for x in left if x in right and x not in out]
    rows, columns = [x for x in left if x not in right], [x for x in right if x not in left]
    size = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))

    def flat(letters: list[str]) -> int:
        return prod([size[x] for x in letters])

    a = widen(a).transpose([left.index(x) for x in batch + rows + summed])
    b = widen(b).transpose([right.index(x) for x in batch + summed + columns])
    product = a.reshape(flat(batch), flat(rows), flat(summed)) @ b.reshape(flat(batch), flat(summed), flat(columns))
    letters = batch + rows + columns
    return product.reshape([size[x] for x in letters]).transpose([letters.index(x) for x in out])


def linear(spec: str, x: Array, weight: Array, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one."""
    y = einsum(spec, x, weight)
    return y if bias is None else y + widen(bias)


@primitive
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by the half that cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


@primitive
def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product: where z is near 0 or 1 the result is a or b."""
    return a + z * (b - a)


def l2_norm(x: Array, eps: float) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(np.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * widen(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """The deviation from the mean over the last axis, by `rms_norm`, plus a bias (Ba et al. 2016, equation 4)."""
    unit = rms_norm(x - np.sum(x, axis=-1, keepdims=True) / x.shape[-1], weight, eps)
    return unit if bias is None else unit + widen(bias)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018, also called swish)."""
    return x * sigmoid(x)


@primitive
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x, 0.0)


@primitive
def softmax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """Normalise over the allowed entries of an axis; where none is allowed the weights are 0.

    Hidden entries are selected to -inf, so their value never enters, and the largest score is subtracted, so that
    `exp` cannot overflow. Allowed scores that are all -inf have overflowed: their weights are NaN, not 0.
    """
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    top = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = np.sum(e, axis=axis, keepdims=True)
    lost = top == -np.inf
    if allowed is not None:
        lost = lost & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    total = np.where(lost, np.nan, total)
    return e / np.where(total == 0, 1.0, total)


@primitive
def sparsemax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The point of the simplex nearest to the allowed scores (Martins and Astudillo 2016, algorithm 1).

    The weights are max(score - tau, 0), with tau such that they add up to 1: the largest of (sum of the k largest - 1)
    / k over all k. Where nothing is allowed the weights are 0; allowed scores that are all -inf give NaN, and so does
    an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    n = scores.shape[axis]
    if n == 0:
        return scores
    top = np.max(z, axis=axis, keepdims=True)
    lost = top == -np.inf
    z = z - np.where(lost, 0.0, top)
    ranks = cumsum(zeros((n,), z) + 1.0, 0).reshape(
        (n,) + (1,) * ((scores.ndim - 1 - axis) if axis >= 0 else (-1 - axis))
    )
    tau = np.max((cumsum(-np.sort(-z, axis=axis), axis) - 1.0) / ranks, axis=axis, keepdims=True)
    tau = np.where(lost, 0.0, tau)
    weights = np.where(z > tau, z - tau, 0.0)
    if allowed is not None:
        lost = lost & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return np.where(lost | ~(top < np.inf), np.nan, weights)


@primitive
def entmax15(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """1.5-entmax of the allowed scores (Peters et al. 2019, algorithm 2), between softmax and sparsemax.

    The weights are max(z - tau, 0)^2 for z half the score, with tau such that they add up to 1: for the k largest z the
    smaller root of sum (z - tau)^2 = 1, over the most k whose smallest z is no less. Where nothing is allowed the
    weights are 0; allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    if scores.shape[axis] == 0:
        return scores
    top = np.max(z, axis=axis, keepdims=True)
    lost = top == -np.inf
    z = (z - np.where(lost, 0.0, top)) / 2.0
    # One largest z alone gives tau = -1, so what is below -1 weighs nothing.
    x = -np.sort(-maximum(z, -1.0), axis=axis)
    k = cumsum(0.0 * x + 1.0, axis)
    mean = cumsum(x, axis) / k
    # k (mean of squares - squared mean), summed so that nothing cancels where many z are nearly equal (Welford 1962).
    apart = cumsum((x - mean) * (x - mean) * (k / maximum(k - 1.0, 1.0)), axis)
    tau = mean - sqrt(maximum(1.0 - apart, 0.0) / k)
    tau = np.max(np.where(tau <= x, tau, -1.0), axis=axis, keepdims=True)
    root = maximum(z - tau, 0.0)
    if allowed is not None:
        lost = lost & np.any(broadcast_to(allowed, scores.shape), axis=axis, keepdims=True)
    return np.where(lost | ~(top < np.inf), np.nan, root * root)


@primitive
def hardmax(scores: Array, allowed: Array | None = None) -> Array:
    """1 at the largest allowed score of the last axis, the first of equals; 0 elsewhere, and where nothing is allowed.

    Without a gradient. Allowed scores that are all -inf give NaN, and so does an allowed one that is NaN or inf.
    """
    if scores.shape[-1] == 0:
        return scores
    z = scores if allowed is None else np.where(allowed, scores, -np.inf)
    chosen = arange(z.shape[-1], z) == argmax(z, -1)[..., None]
    top = np.max(z, axis=-1, keepdims=True)
    some = top > -np.inf
    if allowed is not None:
        some = some | ~np.any(allowed, axis=-1, keepdims=True)
        chosen = chosen & allowed
    return np.where(some & (top < np.inf), chosen.astype(z.dtype), np.nan)


@primitive
def straight_through(hard: Array, soft: Array) -> Array:
    """The value of one array with the gradient of another, which has its shape (Bengio et al. 2013)."""
    return hard


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
    some = np.any(allowed, axis=tuple(i for i, letter in enumerate(source) if letter not in target))
    letters = [letter for letter in source if letter in target]
    some = some.transpose([letters.index(letter) for letter in target if letter in letters])
    return some[tuple(slice(None) if letter in letters else None for letter in target)]


@primitive
def shown(allowed: Array | None, bias: Array | None) -> Array | None:
    """What may be seen when a bias is added: where it is -inf it hides, as a mask does."""
    if bias is None:
        return allowed
    near = bias != -np.inf
    return near if allowed is None else near & allowed


def hide(spec: str, allowed: Any, x: Any) -> Any:
    """Select to 0 the keys that no query sees, `hide("bhts->bshk", allowed, k)`, or the queries that see no key,
    `hide("bhts->bthk", allowed, q)`: nothing they hold can leak, into outputs or gradients.
    """
    some = None if allowed is None else seen(spec, allowed)
    return x if some is None else np.where(some, x, 0.0)


def repeat_heads(x: Array, q: Array) -> Array:
    """Give every query head its key/value head: query head h uses head h // r. Without a head axis nothing to do."""
    if x.ndim == 3 or x.shape[2] == q.shape[2]:
        return x
    return x[:, :, arange(q.shape[2], q) // (q.shape[2] // x.shape[2])]


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """Set the weights to 0 that a keep-mask drops and divide the others by the share kept."""
    return weights if keep is None else np.where(keep, weights / (1.0 - rate), 0.0)


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
    times = range(xs[0].shape[1])
    collected: list[tuple[Array, ...]] = []
    for i in reversed(times) if reverse else times:
        carry, ys = step(carry, tuple(None if x is None else x[:, i] for x in xs))
        carry, ys = at_step(tape, names, i, carry, ys)
        collected.append(ys)
    if reverse:
        collected.reverse()
    stacked = tuple(np.stack(y, axis=1) for y in zip(*collected, strict=True))
    if not stacked:  # no steps: run one on zeros and keep nothing of it but shapes and dtypes
        blank = (None if x is None else np.zeros((x.shape[0], *x.shape[2:]), x.dtype) for x in xs)
        _, ys = step(carry, tuple(blank))
        stacked = tuple(y[:, None][:, :0] for y in ys)
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


class Layer(Generic[C]):
    """Base of the layers: the contract's parameters as attributes, the call's check, training and evaluation mode.

    Args:
        config: the contract's Config.
        rng: a NumPy generator, or a seed for one, that draws the parameters and, in training, dropout.
        dtype: float64, float32, bfloat16 or float16.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    def __init__(
        self,
        config: C,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: str = "float32",
        _values: dict[str, Array] | None = None,
    ) -> None:
        check_config(type(self), config)
        self.config, self.training, self.dtype = config, True, check_dtype(config.variant, dtype)
        self.rng = np.random.default_rng(rng)
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        for name in declared(type(self)):
            if name not in own and name not in children:
                setattr(self, name, None)
        for name in own:
            limit, start = fans[name] ** -0.5, own[name].first()
            if _values is not None:
                drawn = _values[name]
            elif start is not None:
                drawn = np.full(shapes[name], start)
            else:
                drawn = self.rng.uniform(-limit, limit, shapes[name])
            setattr(self, name, drawn.astype(DTYPES[self.dtype]))
        for name, child in children.items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            built = [self._child(part, within(_values, prefix)) for prefix, part in parts.items()]
            setattr(self, name, built if isinstance(child, list) else built[0])

    def _child(self, config: Any, values: dict[str, Array] | None) -> "Layer[Any]":
        cls = getattr(import_module(f"{__package__}.{config.variant}"), config.layer)
        return cls(config, rng=self.rng, dtype=self.dtype, _values=values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, dtype={self.dtype!r})"

    def walk(self) -> Iterator[tuple[str, "Layer[Any]"]]:
        """The layer itself and every layer inside it, with the prefix of its parameters."""
        yield "", self
        for name, child in self.config.children().items():
            parts = getattr(self, name)
            named = [(f"{name}.{i}", p) for i, p in enumerate(parts)] if isinstance(child, list) else [(name, parts)]
            for prefix, part in named:
                yield from ((f"{prefix}.{inner}".rstrip("."), layer) for inner, layer in part.walk())

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        owners = dict(self.walk())
        return {
            name: getattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in self.config.params()
        }

    def set_params(self, values: dict[str, Array]) -> None:
        """Put arrays in the place of the parameters, by dotted name."""
        owners = dict(self.walk())
        for name in self.config.params():
            setattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2], values[name])

    def train(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = True
        return self

    def eval(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = False
        return self

    def check(self, **given: Array | None) -> dict[str, int]:
        """Refuse arguments that cannot be right; sizes of all axis letters."""
        config = self.config

        def check() -> dict[str, int]:
            return config.check(self.dtype if config.params() else None, **specs(config.variant, **given))

        return config.remembered(signature(self.dtype, given), check)

    def init_cache(self, batch_size: int, max_length: int, *, dtype: str | None = None, **sizes: int) -> Any:
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
        from attn_np._cache import empty_cache  # it is written in this module's operations

        kind = check_dtype(self.config.variant, dtype or self.dtype)
        like = np.zeros((), DTYPES[kind])
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
        from attn_np._cache import Cache, closed, opened  # it is written in this module's operations
        from attn_np.contract._decode import check_given, check_step

        given = check_given(self.config, cache, Cache, **arguments)
        config, dropping = self.config, self.training

        def check() -> dict[str, int]:
            sizes, v = self.check(query=query, **given), config.variant
            held = {name: spec_of(v, f"the cache's {name}", x) for name, x in cache.arrays.items()}
            check_step(config, dropping, sizes, spec_of(v, "valid", valid), held, cache.max_length)
            return sizes

        new = {"query": query, **given, "valid": valid}
        words = "step", self.dtype, dropping, cache.max_length
        config.remembered(signature(words, new, cache.arrays), check)
        past = opened(self.config, cache, query, valid)
        found = closed(past, self(query, past=past, tape=tape, **arguments))  # type: ignore[operator]
        object.__setattr__(cache, "spent", True)
        return found

    def draw_keep(self, keep: Array | None, shape: tuple[int, ...], like: Array) -> Array | None:
        """The keep-mask of this call: the one given, in training a random one, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or not self.training or rate == 0:
            return keep
        return self.rng.random(shape) >= rate


def specs(variant: str, **given: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every argument, as the contract's checks take them; None where it was left out."""
    return {name: spec_of(variant, name, x) for name, x in given.items()}


def signature(words: Any, *given: dict[str, Array | None]) -> Any:
    """What a check sees of a call, as a key: whose check, some words, then the type, shape and dtype of every array.

    None where it must look itself.
    """
    try:
        return (
            __name__,
            words,
            *[(n, type(x), x.shape, x.dtype) for some in given for n, x in some.items() if x is not None],
        )
    except AttributeError:
        return None


def spec_of(variant: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not hasattr(x, "__array_function__"):
        raise TypeError(f"{variant}: expected {name} as a NumPy array, got {type(x).__name__}; convert it")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{variant}: expected {name} as a NumPy array, got {type(x).__name__}; give its data, and say by mask= "
            "what may be attended to"
        )
    return tuple(x.shape), dtype_name(x)
