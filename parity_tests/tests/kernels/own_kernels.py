"""Kernels for the referee's tests: a right one with any promise, wrong ones, and those that break their word."""

import os
import threading
import time
from functools import partial, update_wrapper
from typing import Any

import numpy as np

from parity_tests.kernels.arithmetic import CLASSES
from parity_tests.kernels.canonical import Recurrent, Softmax
from parity_tests.kernels.likes import RECUR, Like, inputs, shapes
from parity_tests.kernels.limits import Limits
from parity_tests.kernels.mistakes import MISTAKES
from parity_tests.kernels.planted import run

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
SIMULATED = Like(
    "simulated",
    "parity_tests/kernels/simulated.py",
    "numpy",
    inputs("bthd", "q", "k", "v"),
    {
        "causal": {"causal": "'bottom-right'"},
        "window": {"window": "(left, right)"},
        "mask": {"mask": "mask"},
        "bias": {"bias": ("bias", "bhts")},
        "slopes": {"slopes": ("slopes", "h")},
        "softcap": {"softcap": "softcap"},
        "sinks": {"sinks": ("sinks", "h")},
        "dropout": {"keep": "keep", "rate": "rate"},
        "lengths": {"lengths": "tuple(lengths.tolist())"},
        **shapes(scale={"scale": "scale"}),
    },
    {"y": ("out[0]", "bthd")},
    Limits(gradients=("q", "k", "v", "bias", "sinks"), block=8, lse_gradient=True),
    lse=("out[1]", {}),
    kinds=("dense",),
)
PACKED = Like(
    "simulated packed", SIMULATED.source, "numpy", SIMULATED.inputs,
    {name: SIMULATED.options[name] for name in ("causal", "window", "slopes", "softcap", "sinks", "scale", "grouped")},
    SIMULATED.returns, SIMULATED.limits, lse=SIMULATED.lse, kinds=("packed",),
    packs={"starts": "(tuple(cu_q.tolist()), tuple(cu_k.tolist()))"},
)  # fmt: skip
PAGES = Like(
    "simulated paged", SIMULATED.source, "numpy", SIMULATED.inputs,
    {**PACKED.options, "lengths": {"lengths": "tuple(lengths.tolist())", "table": "table", "page_size": "page"}},
    SIMULATED.returns, Limits(forward_only=True, block=8, page_sizes=(2, 4, 8)), lse=SIMULATED.lse, kinds=("paged",),
)  # fmt: skip
STATES = Like(
    "simulated states", SIMULATED.source, "numpy", RECUR.inputs, RECUR.options, RECUR.returns,
    Limits(block=8, gate="linear"), kinds=("recurrent",), more=RECUR.more, rules=RECUR.rules, same_lengths=True,
    packs={"starts": "tuple(cu_q.tolist())"},
)  # fmt: skip
OF_KIND = {"dense": SIMULATED, "packed": PACKED, "paged": PAGES, "recurrent": STATES}


def simulated(q: Any, k: Any, v: Any, *, mistake: str = "", arithmetic: int = 1, dy: Any = None, **options: Any) -> Any:
    """A blockwise kernel with a mistake of the catalogue, or without."""
    dtype = q.dtype.name
    arrays = {name: np.asarray(x, np.float64) for name, x in (("q", q), ("k", k), ("v", v))}
    floats = ("bias", "slopes", "sinks", "beta", "decay", "state")
    given: dict[str, Any] = {name: np.asarray(x, np.float64) if name in floats else x for name, x in options.items()}
    given |= {name: np.asarray(given[name], np.float64) for name in ("dlse", "dlast") if name in given}
    scale = given.pop("scale", q.shape[-1] ** -0.5)
    gradient = None if dy is None else np.asarray(dy, np.float64)
    if "rule" in given:
        if "decay" in given:
            given["log_decay"] = np.log(given.pop("decay"))
        case: Any = Recurrent(**arrays, dtype=dtype, scale=scale, dy=gradient, block=8, **given)
    else:
        case = Softmax(**arrays, dtype=dtype, scale=scale, dy=gradient, block=8, **given)
    return run(case, CLASSES[arithmetic], BY_NAME[mistake] if mistake else None)


def of_simulated(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Outputs in the kernel's type, and the log-sum-exp or the last states in float32."""
    found = simulated(q, k, v, **options)
    wide = q.dtype if q.dtype == np.float64 else np.float32
    return found["y"].astype(q.dtype), found["lse" if "lse" in found else "last"].astype(wide)


def of_simulated_backward(dy: Any, q: Any, k: Any, v: Any, **options: Any) -> dict[str, Any]:
    """Gradients by parameter."""
    found = simulated(q, k, v, dy=dy, **options)
    if "dlog_decay" in found:
        found["ddecay"] = found.pop("dlog_decay") / options["decay"]
    grads = {name[1:]: x for name, x in found.items() if name.startswith("d")}
    return {name: x.astype(getattr(options.get(name), "dtype", q.dtype)) for name, x in grads.items()}


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, window: Any = None, scale: Any = None, softcap: Any = None,
    bias: Any = None, return_lse: bool = False, promise: str = "",
) -> Any:  # fmt: skip
    """Dense attention with a promise of its own: one word for each that the tests know."""
    (_, t, h, d), (_, s, g, _) = q.shape, k.shape
    heads = np.arange(h) % g if promise == "interleaved" else np.arange(h) // (h // g)
    k, v = k[:, :, heads], v[:, :, heads]
    scale = scale if scale is not None else 1.0 if promise == "scale 1" else d**-0.5
    x = np.einsum("bthd,bshd->bhts", q, k, dtype=np.float64)
    if promise == "cap before scale" and softcap is not None:
        x = scale * softcap * np.tanh(x / softcap)
    else:
        x = scale * x if promise != "bias before scale" else scale * (x + (0 if bias is None else bias))
        x = x if softcap is None else softcap * np.tanh(x / softcap)
    x = x if bias is None or promise == "bias before scale" else x + bias
    ahead = np.arange(s) - np.arange(t)[:, None] - (0 if promise == "top-left" else s - t)
    left, right = (None, None) if window is None else window
    more = 1 if promise == "count" else 0
    seen = np.ones((t, s), bool)
    seen &= (ahead <= 0) if causal else True
    seen &= (ahead >= -left + more) if left is not None else True
    seen &= (ahead <= right - more) if right is not None else True
    x = np.where(seen, x, -np.inf)
    top = np.max(x, axis=3, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    e = np.exp(x - top)
    total = np.sum(e, axis=3, keepdims=True)
    with np.errstate(all="ignore"):
        lse = (top + np.log(total))[..., 0]
        p = e / total if promise == "nan rows" else np.where(total > 0, e / np.where(total > 0, total, 1), 0.0)
    if promise == "mean rows":
        p = np.where(total > 0, p, 1 / s)
    lse = lse / np.log(2) if promise == "base 2" else lse.swapaxes(1, 2) if promise == "lse b t h" else lse
    y = np.einsum("bhts,bshv->bthv", p, v).astype(q.dtype)
    return (y, None, lse.astype(np.float32)) if return_lse else (y, None)


class Wrapped:
    """What a decorator makes of a function; it has no form in which another process could get it."""

    def __init__(self, f: Any) -> None:
        update_wrapper(self, f)
        self.f = f
        self.lock = threading.Lock()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.f(*args, **options)


@Wrapped
def wrapped(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return attention(q, k, v, **options)


def masked(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    """Scores of hidden keys are replaced, and their values multiplied by 0."""
    ahead = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    seen = (ahead <= 0) | (not causal)
    seen = seen if mask is None else seen & mask
    x = np.where(seen, np.einsum("bthd,bshd->bhts", q, k, dtype=np.float64) * q.shape[-1] ** -0.5, -np.inf)
    top = np.max(x, axis=3, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, axis=3, keepdims=True)
    return np.einsum("bhts,bshv->bthv", e / np.where(total > 0, total, 1), v).astype(q.dtype), None


def flex(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """PyTorch's `flex_attention`, not compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(query, key, value, **options)


def backward(dy: Any, q: Any, k: Any, v: Any, **options: Any) -> dict[str, Any]:
    """Gradients of `attn_np.attend`."""
    import attn_np

    return dict(attn_np.value_and_vjp(attn_np.attend, q=q, k=k, v=v, **options)[1](dy).inputs)


def raises(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """A kernel that takes even lengths alone, and does not say so."""
    if q.shape[1] % 2:
        raise RuntimeError(f"lengths must be even, not {q.shape[1]}")
    return attention(q, k, v, **options)


def other_shape(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return attention(q, k, v, **options)[0].swapaxes(1, 2), None


def other_type(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return attention(q, k, v, **options)[0].astype(np.float64), None


def no_array(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return attention(q, k, v, **options)[0].tolist(), None


def hangs(q: Any, k: Any, v: Any, **options: Any) -> Any:
    if q.shape[1] > 8:
        time.sleep(3600)
    return attention(q, k, v, **options)


def crashes(q: Any, k: Any, v: Any, **options: Any) -> Any:
    if q.shape[1] > 8:
        os._exit(3)
    return attention(q, k, v, **options)


def writes(q: Any, k: Any, v: Any, **options: Any) -> Any:
    found = attention(q, k, v, **options)
    q *= 2
    return found


def unwritten(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """A kernel that leaves the last query's output as it was allocated, where there are many."""
    found = attention(q, k, v, **options)[0]
    y = np.empty_like(found)
    n = q.shape[1] if q.shape[1] < 9 else q.shape[1] - 1
    y[:, :n] = found[:, :n]
    return y, None


class Noisy:
    """A kernel whose last bit changes from call to call."""

    calls = 0


def other_bits(q: Any, k: Any, v: Any, **options: Any) -> Any:
    Noisy.calls += 1
    y = attention(q, k, v, **options)[0]
    return np.nextafter(y, np.inf, dtype=y.dtype) if Noisy.calls % 2 else y, None


def forgets(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """A recurrence in chunks of 64 whose state is lost after the first."""
    import attn_np

    n = 64
    if q.shape[1] <= n:
        return attn_np.recur(q, k, v, **options)

    def part(at: slice, **given: Any) -> Any:
        of_positions = {name: options[name][:, at] for name in ("beta", "decay") if name in options}
        return attn_np.recur(q[:, at], k[:, at], v[:, at], **options | of_positions | given)

    first, rest = part(slice(n)), part(slice(n, None), state=None)
    return np.concatenate([first[0], rest[0]], axis=1), rest[1]


def not_rescaled(q: Any, k: Any, v: Any) -> Any:
    """Blocks of 64 keys, whose sum keeps its scale as the maximum grows."""
    top: Any = -np.inf
    total, found = np.zeros(()), np.zeros(())
    for n in range(0, k.shape[1], 64):
        x = np.einsum("bthd,bshd->bhts", q, k[:, n : n + 64], dtype=np.float64) * q.shape[-1] ** -0.5
        top = np.maximum(top, np.max(x, axis=3, keepdims=True))
        e = np.exp(x - top)
        total, found = total + np.sum(e, axis=3), found + np.einsum("bhts,bshv->bthv", e, v[:, n : n + 64])
    return (found / total.swapaxes(1, 2)[..., None]).astype(q.dtype), None


def halved(q: Any, k: Any, v: Any) -> Any:
    """Half the right output of wide heads."""
    y = attention(q, k, v)[0]
    return y if q.shape[-1] <= 40 else y / 2, None


def times(factor: float, q: Any, k: Any, v: Any) -> Any:
    return factor * attention(q, k, v)[0], None


doubled = partial(times, 2.0)


def ungrouped(q: Any, k: Any, v: Any) -> Any:
    if q.shape[2] != k.shape[2]:
        raise ValueError("one key head for each query head")
    return attention(q, k, v)


def without_backward(query: Any, key: Any, value: Any) -> Any:
    """PyTorch's attention, as a kernel that only has a forward pass."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(query.detach(), key.detach(), value.detach())


def no_gradients(dy: Any, q: Any, k: Any, v: Any, **options: Any) -> dict[str, Any]:
    return {}


def none_backward(dy: Any, q: Any, k: Any, v: Any, **options: Any) -> None:
    return None


def reads_behind(q: Any, k: Any, v: Any, lengths: Any = None, **options: Any) -> Any:
    """Weights of 0 times what stands behind the lengths."""
    (_, _, h, d), (_, s, g, _) = q.shape, k.shape
    if lengths is None:
        return attention(q, k, v)
    k, v = (np.repeat(x, h // g, axis=2) for x in (k, v))
    inside = np.arange(s) < np.asarray(lengths)[:, None, None, None]
    x = np.where(inside, np.einsum("bthd,bshd->bhts", q, k, dtype=np.float64) * d**-0.5, -np.inf)
    e = np.exp(x - np.where(np.any(inside, -1, keepdims=True), np.max(x, axis=3, keepdims=True), 0))
    p = e / np.maximum(np.sum(e, axis=3, keepdims=True), 1e-300)
    return np.einsum("bhts,bshv->bthv", p, v).astype(q.dtype), None


def packed_reads(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """A kernel that takes the values' rows for packed ones."""
    rows = np.lib.stride_tricks.as_strided(v, v.shape, [v.itemsize * n for n in packed_strides(v.shape)])
    return attention(q, k, np.nan_to_num(rows), **options)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in numbers, of an array without gaps."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def packed_reads_torch(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """The same in PyTorch."""
    import torch

    rows = v.as_strided(v.shape, packed_strides(v.shape)).nan_to_num()
    y, _ = attention(q.numpy(), k.numpy(), rows.numpy(), **options)
    return torch.from_numpy(y), None
