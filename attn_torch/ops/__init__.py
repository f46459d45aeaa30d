"""PyTorch's dialect: the operations that every variant is written in, by the names that all three packages have."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, broadcast_to, exp, sigmoid, sqrt, stack, where
from torch import concatenate as concatenate
from torch import log as log
from torch import log1p as log1p
from torch import tanh as tanh
from torch.autograd import Function
from torch.fx.experimental.symbolic_shapes import statically_known_true

from attn_np import contract
from attn_np.contract import Config, check_index, record, tap_step
from attn_np.contract import float_dtype_name as float_dtype_name
from attn_np.contract import scope as scope
from attn_torch.ops.autocast import autocast_dtype as autocast_dtype
from attn_torch.ops.autocast import without_autocast as without_autocast
from attn_torch.ops.caches import note_lengths as note_lengths
from attn_torch.ops.caches import read_lengths as read_lengths
from attn_torch.ops.caches import refuse_part, refuse_plain_cache
from attn_torch.ops.caches import use_up as use_up
from attn_torch.ops.modules import call_module
from attn_torch.ops.pages import group_heads as group_heads
from attn_torch.ops.pages import split_rows as split_rows
from attn_torch.ops.pages import take_pages as take_pages
from attn_torch.ops.pages import write_entries as write_entries
from attn_torch.ops.pytrees import pytree as pytree
from attn_torch.ops.recompute import remat as remat
from attn_torch.ops.tracing import concrete
from attn_torch.ops.tracing import is_longer as is_longer
from attn_torch.ops.tracing import lengths_are_numbers as lengths_are_numbers

Array = Tensor
Tape = Any  # a dictionary of named intermediates, or None
DType = str | torch.dtype
Device = torch.device | str | None

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
SIXTEEN_BITS = (torch.float16, torch.bfloat16)

# Arrays ---------------------------------------------------------------------------------------------------------------


def maximum(x: Array, y: Array | float) -> Array:
    return torch.clamp_min(x, y) if isinstance(y, int | float) else torch.maximum(x, y)


def amax_detached(x: Array, axis: int) -> Array:
    """Largest entry of an axis, without a gradient: subtracted from every score before `exp`, it cancels."""
    return torch.amax(x.detach(), dim=axis)


def amin_detached(x: Array, axis: int) -> Array:
    """Least entry of an axis, without a gradient."""
    return torch.amin(x.detach(), dim=axis)


def detach(x: Array) -> Array:
    """The array itself, without a gradient."""
    return x.detach()


def any_over(x: Array, axes: tuple[int, ...]) -> Array:
    """Whether any entry of some axes is True; the array itself without axes."""
    if not axes:
        return x  # torch reduces over all
    nonempty = all(statically_known_true(x.shape[axis] > 0) for axis in axes)
    return torch.amax(x, dim=axes) if nonempty else torch.any(x, dim=axes)  # in a fourth of the time of any on a CPU


def reorder(x: Array, order: Sequence[int]) -> Array:
    """The axes in another order."""
    return x.permute(tuple(order))


def to_device_of(x: Array, like: Array) -> Array:
    """An array on the device of another; beside a DTensor, the same in every process."""
    x = x.to(like.device)
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Replicate  # takes longer to import than torch

    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def roll_last(x: Array, n: int) -> Array:
    """x with the last n entries of its last axis moved to the front."""
    return torch.roll(x, n, -1)


def expand_to_heads(x: Array, like: Array) -> Array:
    """What all heads share, `b s y`, once for each head of `like`, `b s h k`: `b s h y`."""
    return broadcast_to(x[:, :, None], (*like.shape[:3], x.shape[-1]))


def arange(n: int, like: Array) -> Array:
    """0 .. n - 1, on the device of `like`."""
    return to_device_of(torch.arange(n, device=like.device), like)


def argmax(x: Array, axis: int) -> Array:
    """Index of the largest entry; the lowest index among equals."""
    return torch.argmax(x, dim=axis)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    return like.new_zeros(shape)


def constants(values: Sequence[float | int | Sequence[int]], like: Array) -> Array:
    """An array of given numbers, each rounded once to the dtype of `like`."""
    return to_device_of(torch.tensor(values, dtype=torch.float64).to(like.dtype), like)


def lookup(values: Sequence[int], index: Array) -> Array:
    """Given integers by an index that must fit, in its dtype."""
    return constants(values, index)[index]


def take(table: Array, index: Array, fits: bool = False) -> Array:
    """Rows of a table, upcast, by an index that must fit, and is not checked if it does: `u d`, `b t` -> `b t d`."""
    check_index(None if fits else known_range(index), table.shape[0])
    return upcast(table)[index.long()]


def gather_last(x: Array, index: Array) -> Array:
    """Entries of the last axis, by the same index in every head: `b h t n`, `b t s` or `1 t s` -> `b h t s`."""
    b, h, t, _ = x.shape
    index = broadcast_to(index[:, None], (b, h, t, index.shape[-1]))
    return torch.gather(x, -1, index)


def interpolate_last(x: Array, position: Array) -> Array:
    """Entries of the last axis, interpolated linearly between positions: `b h t n`, `b h t s` -> `b h t s`.

    A position is from 0 to n - 1. At a whole number its gradient is the slope to the next entry; at the last, 0.
    """
    low = torch.floor(position.detach())
    # A position may be NaN, and is then read at 0.
    index, steps = torch.nan_to_num(low).long(), torch.nn.functional.pad(x[..., 1:] - x[..., :-1], (0, 1))
    return torch.addcmul(torch.gather(x, -1, index), position - low, torch.gather(steps, -1, index))


def diagonals_to_pairs(x: Array, t: int, s: int) -> Array:
    """From one number per diagonal, `b h t n` or `b h 1 n`, to one per pair, `b h t s`, the last query first.

    The skew of Huang et al. 2018 (arXiv:1809.04281): each row begins one diagonal further to the right than the row
    before, the first row with the first of the n = t + s - 1. Of one query, where n is s, it is x as it is. So
    the result is a view, as PyTorch has no negative strides; `attend_in_row_blocks` gives `attend_rows` queries so.
    """
    (b, h, rows, n) = x.shape
    if n == s:
        return x
    if rows == 1:
        return x[:, :, 0].contiguous().unfold(-1, s, 1)
    x = x.contiguous()
    return x.as_strided((b, h, t, s), (h * t * n, t * n, n + 1, 1), x.storage_offset())


def transpose_diagonals(x: Array) -> Array:
    """Diagonals in the order that `diagonals_to_pairs` takes where the rows are keys and the columns queries."""
    return x


def pairs_to_diagonals(x: Array, n: int) -> Array:
    """One number per pair, `b h t s`, as one per diagonal, `b h t n`, else 0: undoes `diagonals_to_pairs`.

    Rows of n + 1 numbers, laid end to end, are rows of n, each one further to the right than the row before.
    """
    t, s = x.shape[-2:]
    return torch.nn.functional.pad(x, (0, n + 1 - s)).flatten(-2)[..., : t * n].unflatten(-1, (t, n))


def clip(x: Array, low: int, high: int) -> Array:
    """Integers clamped to a range."""
    return torch.clamp(x, low, high)


def signed(x: Array) -> Array:
    """Integers as the widest signed ones, whose differences do not wrap; booleans as they are."""
    return x if x.dtype == torch.bool else x.long()


def known_range(x: Array) -> tuple[Any, Any] | None:
    """The least and the largest entry, as Python's numbers; None where there are none or their values are not known."""
    if not concrete(x) or not x.numel():
        return None
    x = x if x.dtype.is_floating_point else signed(x)  # PyTorch has no least number of wide unsigned ones
    return x.min().item(), x.max().item()


def allows_data_dependent_shapes(x: Array) -> bool:
    """Whether shapes may depend on values: eager NumPy and PyTorch, never JAX."""
    return concrete(x)


def constant_like(make: Callable[..., Any]) -> Callable[..., Array]:
    """`make(np, *values)` as a function of the values, whose results are cached; they go where `like` is.

    In compiled programs, whose lengths may vary, `make` is called with PyTorch, which has functions of the same names.
    """
    cached = lru_cache(maxsize=8)(partial(make, np))

    def array(*args: Any, like: Array) -> Array:
        x = make(torch, *args) if torch.compiler.is_compiling() else torch.from_numpy(cached(*args))
        return to_device_of(x, like)

    return array


def cumsum(x: Array, axis: int) -> Array:
    """Running sum; of booleans, a count."""
    return torch.cumsum(x, dim=axis)


def reverse_cumsum(x: Array) -> Array:
    """For each entry of the last axis, the sum of it and of those after it."""
    return torch.cumsum(x.flip(-1), dim=-1).flip(-1)


def write_slots(buffer: Array, slot: Array, x: Array) -> Array:
    """The buffer with slots written: `b s ...`, `b t`, `b t ...` -> `b s ...`. In place unless gradients flow."""
    refuse_plain_cache(buffer, x)
    rows = arange(buffer.shape[0], buffer)[:, None]
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or buffer.requires_grad)
    return buffer.index_put((rows, slot), x) if needs_grad else buffer.index_put_((rows, slot), x)


def write_slice(buffer: Array, start: int, x: Array) -> Array:
    """The buffer with entries from slot `start` on: `b s ...`, `b t ...` -> `b s ...`. In place as `write_slots` is."""
    refuse_plain_cache(buffer, x)
    if torch.is_grad_enabled() and (x.requires_grad or buffer.requires_grad):
        return torch.slice_scatter(buffer, x.expand(buffer.shape[0], *x.shape[1:]), 1, start, start + x.shape[1])
    buffer.narrow(1, start, x.shape[1]).copy_(x)
    return buffer


def write_positions(buffer: Array, start: int, stop: int) -> Array:
    """The buffer, `b s`, with slots start .. stop - 1 set to their own indices. In place."""
    slots = buffer.narrow(1, start, stop - start)
    if stop - start == 1:
        slots.fill_(start)  # spares a tensor
    else:
        slots.copy_(torch.arange(start, stop, device=buffer.device))
    return buffer


def take_rows(x: Array, index: Array) -> Array:
    """Batch rows by an index that must fit: `b ...`, `n` -> `n ...`, laid out in memory as `empty_slots` are."""
    heads_first = x.ndim == 4 and x.stride(1) < x.stride(2)
    return x.transpose(1, 2).index_select(0, index).transpose(1, 2) if heads_first else x.index_select(0, index)


def empty_slots(shape: tuple[int, ...], like: Array) -> Array:
    """Empty slots of a cache, `b s ...`; the entries of one head, of `b s h k`, are contiguous in memory."""
    if len(shape) != 4:
        return zeros(shape, like)
    b, s, h, k = shape
    return zeros((b, h, s, k), like).transpose(1, 2)


def memoized_check(config: Config, dtype: str | None, specs: Mapping[str, Any]) -> dict[str, int]:
    """The size of every axis letter of a call, its check cached; compiled programs trace the check itself."""
    return (
        config.check(dtype, **specs) if torch.compiler.is_compiling() else contract.memoized_check(config, dtype, specs)
    )


def dtype_name(x: Array) -> str:
    return DTYPE_NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")


def check_device(device: Device) -> Device:
    """The device as a torch.device, which must be one that is here; None stays None.

    Raises:
        ValueError: it is not.
    """
    try:
        return device if device is None else torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        known = ["cpu"] if here is None else ["cpu", here.type]
        raise contract.device_error("attn_torch", known, device) from error


def from_numpy(x: np.ndarray, device: Device = None) -> Array:
    """A NumPy array as a tensor of its own, bit by bit: bfloat16 travels as its bits."""
    bits = x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x
    copy = torch.from_numpy(bits.copy())
    return (copy if bits is x else copy.view(torch.bfloat16)).to(device=device)


def to_numpy(x: Array) -> np.ndarray:
    """A tensor as a NumPy array, bit by bit: bfloat16 travels as its bits. A DTensor is refused: `refuse_part`."""
    refuse_part(x)
    x = x.detach().cpu().contiguous()
    return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def upcast(x: Any) -> Any:
    """float32 for 16-bit types; other types, None, and modules, which widen by themselves, stay as they are."""
    return x.float() if getattr(x, "dtype", None) in SIXTEEN_BITS else x


def to_dtype(x: Any, dtype: str) -> Any:
    """An array in a dtype, rounded once if it has fewer bits; None stays None."""
    return x if x is None or dtype_name(x) == dtype else x.to(DTYPES.get(dtype) or getattr(torch, dtype))


def einsum(subscripts: str, a: Array, b: Array) -> Array:
    """Sum of products over the letters that both operands have and the output lacks, as one batched matrix product.

    A letter that one operand alone has must be in the output. Under `torch.autocast` a product is rounded to its dtype,
    as in PyTorch's own modules; what is added to it is in float32.
    """
    left, right, out = subscripts.replace("->", ",").split(",")
    n = (len(left) + len(right) - len(out)) // 2
    if n and left[-n:] == right[:n] and out == left[:-n] + right[n:]:  # a projection: no axis has to move
        first, last, contracted = a.shape[:-n], b.shape[n:], prod(b.shape[:n])
        product = upcast(a).reshape(prod(first), contracted) @ upcast(b).reshape(contracted, prod(last))
        return upcast(product).reshape(*first, *last)
    batch = [x for x in left if x in right and x in out]
    summed = [x for x in left if x in right and x not in out]
    rows, columns = [x for x in left if x not in right], [x for x in right if x not in left]
    size = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))

    def length(letters: list[str]) -> int:
        return prod([size[x] for x in letters])

    outer = right[: right.index(summed[0])] if summed and not batch else ""
    if outer and right.startswith(outer + "".join(summed)) and len(outer) < len(columns):
        # A product for each of b's outer axes: b stays as it lies in memory, where one product would need a copy.
        a = upcast(a).permute([left.index(x) for x in rows + summed]).reshape(1, length(rows), length(summed))
        b = upcast(b).reshape(length([*outer]), length(summed), length(columns[len(outer) :]))
        letters = [*outer, *rows, *columns[len(outer) :]]
        product = upcast(torch.bmm(a.expand(b.shape[0], -1, -1), b)).reshape([size[x] for x in letters])
        return product.permute([letters.index(x) for x in out])
    a = upcast(a).permute([left.index(x) for x in batch + rows + summed])
    b = upcast(b).permute([right.index(x) for x in batch + summed + columns])
    product = a.reshape(length(batch), length(rows), length(summed)) @ b.reshape(
        length(batch), length(summed), length(columns)
    )
    letters = batch + rows + columns
    return upcast(product).reshape([size[x] for x in letters]).permute([letters.index(x) for x in out])


def linear(subscripts: str, x: Array, weight: Array | torch.nn.Module, bias: Array | None) -> Array:
    """A projection: `einsum`, plus a bias over its last axes where there is one; of a module, what it returns."""
    y = call_module(weight, x) if isinstance(weight, torch.nn.Module) else einsum(subscripts, x, weight)
    return y if bias is None else y + upcast(bias)


def lerp(a: Array, b: Array, z: Array) -> Array:
    """(1 - z) a + z b for z from 0 to 1, with one product."""
    return a + z * (b - a)


def l2_normalize(x: Array, eps: float | Array) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / sqrt(torch.sum(x * x, dim=-1, keepdim=True) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean x^2 + eps) over the last axis, times a weight (Zhang and Sennrich 2019, equation 4)."""
    unit = x / sqrt(torch.sum(x * x, dim=-1, keepdim=True) / x.shape[-1] + eps)
    return unit if weight is None else unit * upcast(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """`rms_norm` of the deviation from the mean over the last axis, plus a bias (Ba et al. 2016, equation 4)."""
    unit = rms_norm(x - torch.sum(x, dim=-1, keepdim=True) / x.shape[-1], weight, eps)
    return unit if bias is None else unit + upcast(bias)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2018, also called swish)."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return torch.logaddexp(x, torch.zeros_like(x))


def softmax(scores: Array, allowed: Array | None = None, axis: int = -1) -> Array:
    """The softmax over the allowed entries of an axis; where none is allowed the weights are 0.

    Hidden entries are replaced by -inf, so that their value has no effect, and the largest score is subtracted, so that
    `exp` cannot overflow. Allowed scores that are all -inf have overflowed: their weights are NaN, not 0.
    """
    if allowed is not None:
        scores = where(allowed, scores, -torch.inf)
    if scores.shape[axis] == 0:
        return scores
    top = torch.amax(scores.detach(), dim=axis, keepdim=True)
    e = exp(scores - where(top == -torch.inf, 0.0, top))
    total = torch.sum(e, dim=axis, keepdim=True)
    overflowed = top == -torch.inf
    if allowed is not None:
        overflowed = overflowed & torch.any(broadcast_to(allowed, scores.shape), dim=axis, keepdim=True)
    total = where(overflowed, torch.nan, total)
    return e / where(total == 0, 1.0, total)


def softmax_and_lse(scores: Array, allowed: Array | None) -> tuple[Array, Array]:
    """The weights of a softmax over the keys and the logarithm of each row's sum of exponentials, `b h t`.

    Where no key is allowed, or all overflow to -inf, the weights are 0 and the logarithm is -inf: a part for `merge`.
    """
    return SoftmaxAndLse.apply(scores if allowed is None else scores.masked_fill(~allowed, -torch.inf))


class SoftmaxAndLse(Function):
    """In three passes over the scores and two backward; the operations one by one take three times as many."""

    @staticmethod
    def forward(ctx, scores):
        top, probs = torch.amax(scores, -1, keepdim=True), torch.softmax(scores, -1)
        nothing = top == -torch.inf
        if nothing.any():
            probs.masked_fill_(nothing, 0.0)
        ctx.save_for_backward(probs)
        # The largest score has the largest weight: exp(top - lse).
        lse = top - torch.log(torch.amax(probs, -1, keepdim=True).masked_fill_(nothing, 1.0))
        return probs, lse[..., 0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        dprobs, dlse = grad_outputs
        (probs,) = ctx.saved_tensors
        return probs * (dprobs + (dlse - torch.linalg.vecdot(probs, dprobs))[..., None])


def repeat_heads(x: Array, like: Array) -> Array:
    """Head h // r of x for each head h of `like`, `b t h k`, if x has 1/r as many. Without a head axis, x itself."""
    if x.ndim == 3 or x.shape[2] == like.shape[2]:
        return x
    return x[:, :, arange(like.shape[2], like) // (like.shape[2] // x.shape[2])]


def dropout(weights: Array, keep: Array | None, rate: float) -> Array:
    """The weights, 0 where `keep` is False, the others divided by 1 - rate."""
    return weights if keep is None else where(keep, weights / (1.0 - rate), 0.0)


# Scans ----------------------------------------------------------------------------------------------------------------


def iterate(body: Callable[[Any], Any], carry: Any, times: int) -> Any:
    """The carry after `times` steps `carry = body(carry)`."""
    for _ in range(times):
        carry = body(carry)
    return carry


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
    body = remat(body) if recompute_with else body
    time_indices = range(xs[0].shape[1])
    # Taken apart at once: the gradient of each x[:, i] would be an array as large as x.
    parts = [None if x is None else x.unbind(1) for x in xs]
    step_ys: list[tuple[Array, ...]] = []
    for i in reversed(time_indices) if reverse else time_indices:
        carry, ys = body(carry, tuple(None if x is None else x[i] for x in parts), *recompute_with)
        carry, ys = tap_step(tape, names, i, carry, ys)
        step_ys.append(ys)
    if reverse:
        step_ys.reverse()
    stacked = tuple(stack(y, dim=1) for y in zip(*step_ys, strict=True))
    if not stacked:  # no steps: run one on zeros, for shapes, dtypes and the graph
        blank = (None if x is None else zeros((x.shape[0], *x.shape[2:]), x) for x in xs)
        _, ys = body(carry, tuple(blank), *recompute_with)
        stacked = tuple(y[:, None][:, :0] for y in ys)
    out = record(tape, **dict(zip(names, stacked, strict=True)))
    return carry, out if isinstance(out, tuple) else (out,)
