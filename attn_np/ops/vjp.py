"""Derivative rules, each derived once: the gradients of operands from the gradient of their result."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import BoundArguments, Parameter, signature
from itertools import zip_longest
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np.contract._package import FUNCTIONS
from attn_np.contract._tape import BackwardTape
from attn_np.ops import (
    Array,
    differences_to_next,
    dispatches_on_array_type,
    dtype_name,
    einsum,
    flat_indices,
    pairs_to_diagonals,
    record,
    sigmoid,
    sqrt,
    to_dtype,
    upcast,
    where,
)

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in
NARROW = 16  # numbers in a row of a table whose gradients are counted column by column


@dataclass(frozen=True)
class Grads:
    """Gradients of the inputs of a call and of every parameter, by name."""

    inputs: dict[str, Array]
    params: dict[str, Array]


def make_grads(dtype: str, inputs: Mapping[str, Array | None], params: Mapping[str, Array | None]) -> Grads:
    """The gradients that are not None, rounded once to the dtype of `dy`."""
    return Grads(
        inputs={name: to_dtype(g, dtype) for name, g in inputs.items() if g is not None},
        params={name: to_dtype(g, dtype) for name, g in params.items() if g is not None},
    )


def prepare_dy(tape: dict[str, Array], dy: Array) -> Array:
    """The output's gradient, checked, upcast and taped.

    Raises:
        ValueError: another shape than the output's.
        TypeError: 64 bits for an output of 32 or 16, or the other way round.
    """
    return record(tape, dy=checked_dy(tape["y"], dy))


def checked_dy(y: Array | None, dy: Array) -> Array:
    """An output's gradient, upcast; its shape and dtype must be those of the output, 16 bits as good as 32."""
    if y is None:
        raise ValueError(f"vjp: expected None for what the call did not return, got shape {dy.shape}; leave it out")
    upcast_dy = upcast(dy)
    if upcast_dy.shape != y.shape:
        raise ValueError(f"vjp: expected dy of shape {y.shape}, as the output, got {dy.shape}; pass dL/dy")
    if dtype_name(upcast_dy) != dtype_name(upcast(y)):
        raise TypeError(f"vjp: expected dy of the output's dtype, got {dtype_name(dy)}; convert it")
    return upcast_dy


def einsum_vjp(subscripts: str, a: Array, b: Array, dy: Array) -> tuple[Array, Array]:
    """y = sum a b over the letters that y lacks, so dL/da = sum dy b over the letters that a lacks.

    The same string with the operand and the output exchanged.
    """
    left, right, out = subscripts.replace("->", ",").split(",")
    return einsum(f"{out},{right}->{left}", dy, b), einsum(f"{left},{out}->{right}", a, dy)


def linear_vjp(
    subscripts: str, x: Array, weight: Array, bias: Array | None, dy: Array
) -> tuple[Array, Array, Array | None]:
    """y = x w + b: the product's rule, and the bias sums dy over the axes that it was spread over."""
    dx, dw = einsum_vjp(subscripts, x, weight, dy)
    return dx, dw, None if bias is None else sum_to(dy, bias.shape)


def sum_to(dy: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an array that was broadcast: summed over new axes and axes of 1, one term for each copy."""
    lead = dy.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and dy.shape[lead + i] != 1)
    return np.sum(dy, axis=axes).reshape(shape) if axes else dy


@dispatches_on_array_type
def softmax_vjp(probs: Array, dprobs: Array, axis: int = -1) -> Array:
    """p_i = e^{s_i} / sum_j e^{s_j} has dp_i/ds_j = p_i (delta_ij - p_j).

    So ds_j = sum_i dp_i p_i (delta_ij - p_j) = p_j (dp_j - sum_i p_i dp_i). A row without an allowed key has p = 0
    and gets 0, and so does every hidden key.
    """
    return probs * (dprobs - np.sum(probs * dprobs, axis=axis, keepdims=True))


@dispatches_on_array_type
def part_of_softmax(scores: Array, top: Array, total: Array, parts: int) -> Array:
    """Weights of some of the keys, from the largest score and the sum of exponentials over all of them.

    Args:
        scores: of these keys, -inf where one is hidden.
        top, total: over all keys.
        parts: the number of parts that the keys were summed in, which only an array that carries its errors reads.
    """
    return np.exp(scores - top) / total


@dispatches_on_array_type
def part_of_softmax_vjp(probs: Array, dprobs: Array, mean: Array, parts: int) -> Array:
    """`softmax_vjp` for some of the keys: p_j (dp_j - mean), where mean = sum_i p_i dp_i over all of them.

    `parts` is as in `part_of_softmax`.
    """
    return (dprobs - mean) * probs


@dispatches_on_array_type
def sparsemax_vjp(probs: Array, dprobs: Array, axis: int = -1) -> Array:
    """p_i = s_i - tau on the support, where tau is the mean of its k scores less 1/k, so dp_i/ds_j = delta_ij - 1/k.

    So ds_j = dp_j - the mean of dp over the support, and 0 outside it.
    """
    support = probs > 0
    count = np.sum(support, axis=axis, keepdims=True).astype(dprobs.dtype)
    mean = np.sum(np.where(support, dprobs, 0.0), axis=axis, keepdims=True) / np.where(count == 0, 1, count)
    return np.where(support, dprobs - mean, 0.0)


@dispatches_on_array_type
def entmax15_vjp(probs: Array, dprobs: Array, axis: int = -1) -> Array:
    """p_i = g_i^2 with g_i = s_i / 2 - tau, so dp_i/ds_j = g_i (delta_ij - 2 dtau/ds_j).

    sum g_i^2 = 1 stays, so tau moves by 2 dtau/ds_j = g_j / sum g_i, and ds_j = g_j (dp_j - sum g_i dp_i / sum g_i).
    """
    root = np.sqrt(probs)
    root_sum = np.sum(root, axis=axis, keepdims=True)
    mean = np.sum(root * dprobs, axis=axis, keepdims=True) / np.where(root_sum == 0, 1.0, root_sum)
    return root * (dprobs - mean)


def repeat_heads_vjp(dx: Array, heads: int | None) -> Array:
    """Head g was copied to the r query heads g r .. g r + r - 1: each copy sends its gradient back."""
    if heads is None or dx.shape[2] == heads:
        return dx
    b, s, h, k = dx.shape
    return np.sum(dx.reshape(b, s, heads, h // heads, k), axis=3)


def dropout_vjp(dkept: Array, keep: Array | None, rate: float) -> Array:
    """A kept weight was divided by 1 - rate, and so is its gradient; a dropped one gets 0."""
    return dkept if keep is None else where(keep, dkept / (1.0 - rate), 0.0)


@dispatches_on_array_type
def tanh_vjp(y: Array, dy: Array) -> Array:
    """d tanh(x)/dx = 1 - tanh(x)^2."""
    return dy * (1.0 - y * y)


@dispatches_on_array_type
def sigmoid_vjp(y: Array, dy: Array) -> Array:
    """d sigmoid(x)/dx = sigmoid(x) (1 - sigmoid(x))."""
    return dy * y * (1.0 - y)


@dispatches_on_array_type
def softplus_vjp(x: Array, dy: Array) -> Array:
    """d log(1 + e^x)/dx = e^x / (1 + e^x) = sigmoid(x)."""
    return dy * sigmoid(x)


@dispatches_on_array_type
def silu_vjp(x: Array, dy: Array) -> Array:
    """d x s(x)/dx = s + x s (1 - s) for s = sigmoid(x)."""
    s = sigmoid(x)
    return dy * s + dy * x * s * (1.0 - s)


@dispatches_on_array_type
def divide_by_norm_vjp(x: Array, norm: Array, dy: Array, factor: float) -> Array:
    """y = x / norm with norm^2 = factor sum x^2 + eps has d norm/dx_j = factor x_j / norm.

    So dx_j = dy_j / norm - sum_i dy_i x_i / norm^2 * factor x_j / norm.
    """
    return dy / norm - x * (np.sum(dy * x, axis=-1, keepdims=True) * factor / (norm * norm * norm))


def l2_normalize_vjp(x: Array, eps: float | Array, dy: Array) -> Array:
    """`divide_by_norm_vjp` for norm^2 = sum x^2 + eps."""
    return divide_by_norm_vjp(x, sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps), dy, 1.0)


def rms_norm_vjp(x: Array, weight: Array | None, eps: float, dy: Array) -> tuple[Array, Array | None]:
    """`divide_by_norm_vjp` for norm^2 = mean x^2 + eps; the weight gets the sum of dy x / norm."""
    norm = sqrt(np.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    dunit = dy if weight is None else dy * upcast(weight)
    dweight = None if weight is None else sum_to(dy * (x / norm), weight.shape)
    return divide_by_norm_vjp(x, norm, dunit, 1.0 / x.shape[-1]), dweight


def layer_norm_vjp(
    x: Array, weight: Array | None, bias: Array | None, eps: float, dy: Array
) -> tuple[Array, Array | None, Array | None]:
    """`rms_norm_vjp` at the deviation from the mean; dx loses its mean, because x - mean has no mean."""
    deviation = x - np.sum(x, axis=-1, keepdims=True) / x.shape[-1]
    dx, dweight = rms_norm_vjp(deviation, weight, eps, dy)
    dx = dx - np.sum(dx, axis=-1, keepdims=True) / x.shape[-1]
    return dx, dweight, sum_to(dy, bias.shape) if bias is not None else None


def lerp_vjp(a: Array, b: Array, z: Array, dy: Array) -> tuple[Array, Array, Array]:
    """y = a + z (b - a), so dy/da = 1 - z, dy/db = z and dy/dz = b - a."""
    return one_minus_z_times(z, dy), z * dy, dy * (b - a)


@dispatches_on_array_type
def one_minus_z_times(z: Array, dy: Array) -> Array:
    """(1 - z) dy, in the form that differentiating a + z (b - a) gives."""
    return dy - z * dy


def take_vjp(table: Array, index: Array, dy: Array) -> Array:
    """Row u of the table gets the sum of the gradients at all places whose index is u."""
    index, dy = index.reshape(-1), dy.reshape(index.size, *table.shape[1:])
    if type(dy) is not np.ndarray:  # the judge's error arrays support only products
        one_hot = (index[:, None] == np.arange(table.shape[0])).astype(dy.dtype)
        return einsum("tu,td->ud", one_hot, dy.reshape(len(index), -1)).reshape(table.shape)
    if dy.ndim == 2 and dy.shape[1] <= NARROW:  # a number for each head: a tenth of the time
        index = index.astype(np.intp, copy=False)
        return np.stack([np.bincount(index, x, len(table)) for x in dy.T], 1).astype(dy.dtype)
    order = np.argsort(index, kind="stable")
    rows, starts = np.unique(index[order], return_index=True)
    dtable = np.zeros(table.shape, dy.dtype)
    if len(rows) > 0:
        dtable[rows] = np.add.reduceat(dy[order], starts, 0)
    return dtable


def gather_last_vjp(x: Array, index: Array, dy: Array) -> Array:
    """An entry gets the sum of the gradients at all places whose index is its own: `b h t s` -> `b h t n`."""
    (b, h, t, s), n = dy.shape, x.shape[-1]
    index = np.broadcast_to(index, (b, t, s))
    if type(dy) is not np.ndarray:  # the judge's error arrays support only products
        return einsum("bhts,btsn->bhtn", dy, (index[..., None] == np.arange(n)).astype(dy.dtype))
    rows = np.arange(b * h * t).reshape(b, h, t, 1) * n
    return np.bincount((rows + index[:, None]).ravel(), dy.ravel(), b * h * t * n).reshape(x.shape).astype(dy.dtype)


def interpolate_last_vjp(x: Array, position: Array, dy: Array) -> tuple[Array, Array]:
    """y = (1 - w) x_i + w x_{i+1} for w = position - i, so dy/dx_i = 1 - w, dy/dx_{i+1} = w, dy/dw = x_{i+1} - x_i."""
    return interpolated_entries_vjp(position, dy, x.shape[-1]), dy * slope_last(x, position)


@dispatches_on_array_type
def slope_last(x: Array, position: Array) -> Array:
    """The slope of `interpolate_last` in the position: from the entry at or before it to the next, 0 at the last."""
    return np.take(differences_to_next(x), flat_indices(np.floor(position), x.shape[-1]), mode="clip")


@dispatches_on_array_type
def interpolated_entries_vjp(position: Array, dy: Array, n: int) -> Array:
    """An entry gets the sum of (1 - w) dy at the positions from it to the next entry, and of w dy at those from the
    entry before to it: `b h t n`.

    Neighbours mostly have the same entry, and are summed together first.
    """
    low = np.floor(position)
    index, shape = flat_indices(low, n).ravel(), (*dy.shape[:-1], n)
    starts = np.concatenate([[0], np.flatnonzero(index[1:] != index[:-1]) + 1])[: index.size]
    parts = np.subtract(position, low, out=low)
    parts *= dy
    entries = index[starts]
    after, own = (
        np.bincount(entries, np.add.reduceat(part.ravel(), starts), prod(shape)) for part in (parts, dy - parts)
    )
    after, own = after.reshape(shape), own.reshape(shape)
    own[..., 1:] += after[..., :-1]
    return own.astype(dy.dtype)


def diagonals_to_pairs_vjp(shape: tuple[int, ...], dy: Array) -> Array:
    """Sums over the pairs of each diagonal, in this shape: `b h t s` -> `b h t n` or `b h 1 n`."""
    return sum_to(dy if shape[-1] == dy.shape[-1] else pairs_to_diagonals(dy, shape[-1]), shape)


@dispatches_on_array_type
def sum_grads(first: Array, *others: Array | None) -> Array:
    """The sum of the gradients that reach one array on several paths; a path that does not exist gives None."""
    return sum((x for x in others if x is not None), start=first)


# Of a whole layer or function -----------------------------------------------------------------------------------------


def value_and_vjp(
    layer: Any, *inputs: Any, recompute: bool = False, **options: Any
) -> tuple[Any, Callable[..., Grads]]:
    """The output, and a function `pull` from its gradient to the gradients of inputs and parameters.

    `pull` takes the gradient of y, and of a recurrent layer that returns its state also the state's. It may be called
    more than once and from any thread. It uses this call's parameters and dropout, even if the layer gets others
    afterwards; arrays are not copied: do not write into them before `pull`.

    Of a function, such as `attend`, `pull` takes a gradient for each output, None for one that the loss does not use;
    later ones may be left out. It returns gradients by the names of the arguments, and no parameters.

    Args:
        layer: the layer, or a function that has a backward pass.
        inputs, options: what the layer is called with.
        recompute: compute the forward pass again in each `pull`, a third more time in all. Until then only inputs and
            output are kept in memory, and not every array that the backward pass reads.

    Raises:
        TypeError: a function without a backward pass.
    """
    if not hasattr(layer, "config"):
        return function_value_and_vjp(layer, inputs, options, recompute)
    if not recompute:
        layer_copy, tape = shallow_copy(layer, lambda part: part.rng), BackwardTape()
        y = layer_copy(*inputs, tape=tape, **options)
        return y, lambda *cotangents: layer_copy.vjp(copy(tape), *cotangents)

    layer_copy = shallow_copy(layer, lambda part: RecordingGenerator(part.rng))
    y = layer_copy(*inputs, **options)

    def pull(*cotangents: np.ndarray) -> Grads:
        tape, replayed = BackwardTape(), shallow_copy(layer_copy, lambda part: part.rng.replay())
        replayed(*inputs, tape=tape, **options)
        return replayed.vjp(tape, *cotangents)

    return y, pull


def defvjp(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes the rule below it the function's attribute `vjp`.

    A rule takes the tape of a call, the gradient of each output and the call's arguments by name. It returns the
    gradients by the arguments' names. The tape is the one that the function wrote, and has the first output as `y`.
    """

    def attach(rule: Callable[..., Any]) -> Callable[..., Any]:
        vars(function)["vjp"] = rule
        return rule

    return attach


def rule_of(function: Any) -> Callable[..., dict[str, Any]]:
    """The rule that a function carries; of a `partial`, with the arguments that it fixes.

    Raises:
        TypeError: it carries none.
    """
    if isinstance(function, partial):
        rule = rule_of(function.func)
        by_position = dict(zip(signature(function.func).parameters, function.args, strict=False))
        return partial(rule, **by_position, **function.keywords)
    if not callable(getattr(function, "vjp", None)):
        name = getattr(function, "__name__", repr(function))
        if name in FUNCTIONS and str(function.__module__).startswith(f"{TREE}."):
            fix = "nothing that it returns depends on an array of floats: call it alone"
            raise TypeError(f"value_and_vjp: expected a function with a gradient, got {name}; {fix}")
        fix = "set its attribute vjp, a function (tape, dy, **arguments) -> gradients by name"
        raise TypeError(f"value_and_vjp: expected a layer or a function with a backward pass, got {name}; {fix}")
    return function.vjp


def cast_like(grad: Any, x: Any) -> Any:
    """A gradient in the dtype of its argument; lists, tuples and dicts by attribute name entry by entry."""
    if isinstance(x, list | tuple):
        return type(x)(cast_like(g, y) for g, y in zip(grad, x, strict=True))
    if isinstance(grad, dict):
        return {name: cast_like(g, getattr(x, name)) for name, g in grad.items()}
    return to_dtype(grad, dtype_name(x))


def arguments_by_name(call: BoundArguments) -> dict[str, Any]:
    """The arguments of a call by name; those that a function takes as `**options` are beside the others."""
    named = dict(call.arguments)
    for name, parameter in call.signature.parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            named |= named.pop(name)
    return named


def function_value_and_vjp(
    function: Any, inputs: tuple[Any, ...], options: dict[str, Any], recompute: bool
) -> tuple[Any, Callable[..., Grads]]:
    """`value_and_vjp` of a function that carries a rule; of a `partial`, what it fixes has gradients as well."""
    while isinstance(function, partial):
        inputs, options, function = (*function.args, *inputs), function.keywords | options, function.func
    rule, call = rule_of(function), signature(function).bind(*inputs, **options)
    call.apply_defaults()
    named = arguments_by_name(call)

    def forward(tape: dict[str, Any] | None) -> Any:
        taped = {"tape": tape} if "tape" in call.arguments else {}
        arguments = BoundArguments(call.signature, OrderedDict(call.arguments | taped))
        return function(*arguments.args, **arguments.kwargs)

    def pull(*cotangents: Any) -> Grads:
        tape = BackwardTape() if recompute else copy(forward_tape)
        if recompute:
            forward(tape)
        if all(dy is None for dy in cotangents):
            name = getattr(function, "__name__", "the function")
            raise TypeError(f"{name}: expected the gradient of an output, got none; pass dL/dy")
        tape["y"] = upcast(outputs[0])
        dys = [None if dy is None else checked_dy(y, dy) for y, dy in zip_longest(outputs, cotangents)]
        gradients = rule(tape, *dys, **{name: x for name, x in named.items() if name != "tape"})
        return Grads(inputs={n: cast_like(g, named[n]) for n, g in gradients.items() if g is not None}, params={})

    forward_tape = BackwardTape()
    y = forward(None if recompute else forward_tape)
    outputs = y if isinstance(y, tuple) else (y,)
    return y, pull


def shallow_copy(layer: Any, make_rng: Callable[[Any], Any]) -> Any:
    """A copy with the same parameter arrays, whatever is set in the layer later, and with other generators."""
    duplicate = copy(layer)
    duplicate.rng = make_rng(layer)
    for name in layer.config.children():
        parts = getattr(layer, name)
        duplicates = (
            [shallow_copy(part, make_rng) for part in parts]
            if isinstance(parts, list)
            else shallow_copy(parts, make_rng)
        )
        setattr(duplicate, name, duplicates)
    return duplicate


class RecordingGenerator:
    """Draws from a generator and records how, to `replay` the draws, even if other threads draw from it in between."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.source, self.states = generator.bit_generator, list[Any]()

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        with self.source.lock:  # under which all threads draw
            bits = deepcopy(self.source)
            self.states.append(bits.state)
            numbers = np.random.Generator(bits).random(shape)
            self.source.state = bits.state
        return numbers

    def replay(self) -> Any:
        """A generator that draws the same arrays once more."""
        states, bits = iter(self.states), deepcopy(self.source)

        def random(shape: tuple[int, ...]) -> np.ndarray:
            bits.state = next(states)
            return np.random.Generator(bits).random(shape)

        return SimpleNamespace(random=random)
