"""The calls of `parallel` that every tree is asked, and the results of one device, with the bounds of the judge.

Nothing here imports a framework but NumPy: the processes of PyTorch read it, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import attn_np
from attn_np import patterns
from attn_np.parallel import from_devices, to_devices
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of

Arrays = dict[str, np.ndarray]
FUNCTIONS = ("ring_attend", "gather_attend", "ulysses_attend")
LAYOUTS = ("contiguous", "zigzag", "striped")
B, T, S, H, G, K, V = 2, 48, 80, 8, 2, 5, 3
# The axis of the positions, of what has one; a result or gradient has that of the array that it belongs to.
AXES = {"q": 1, "k": 1, "v": 1, "y": 1, "lse": 2, "query_documents": 1, "key_documents": 1, "marks": 1}
# The axis of the heads, of what has one beside sinks and decays.
HEADS = {"q": 2, "k": 2, "v": 2, "y": 2, "lse": 1, "beta": 2, "state": 1, "last": 1, "erase_key": 2}
WINDOW = (7, None)


@dataclass(frozen=True)
class Asked:
    """What a call of attention is given beside q, k and v.

    Attributes:
        options: those that are no arrays.
        arrays: sinks, lengths, and offset: arrays that all devices have.
        pattern: makes the pattern from the arrays of all positions.
        keys, heads, kv_heads: sizes.
    """

    options: dict[str, Any]
    arrays: str = ""
    pattern: Callable[[Arrays], patterns.Pattern] | None = None
    keys: int = S
    heads: int = H
    kv_heads: int = G


def documents(x: Arrays) -> patterns.Pattern:
    return patterns.Documents(x["query_documents"], x["key_documents"])


def marked(x: Arrays) -> patterns.Pattern:
    return patterns.Chunks(8, 1) & patterns.Causal() | patterns.GlobalKeys(x["marks"])


CALLS = {
    "plain": Asked({}),
    "causal": Asked({"causal": True}, keys=T, kv_heads=H),
    "window": Asked({"causal": True, "window": WINDOW}, keys=T, kv_heads=1),
    "both sides": Asked({"window": (5, 9), "scale": 0.4}),
    "sinks": Asked({"causal": True, "softcap": 1.5}, "sinks", heads=24, kv_heads=6),
    "documents": Asked({"causal": True}, "", documents),
    "lengths and offset": Asked({"causal": True}, "lengths offset sinks"),
    "an offset": Asked({"causal": True, "offset": 20, "window": (30, None)}),
    "marked": Asked({}, "lengths", marked),
    "all": Asked({"window": (40, 3), "softcap": 2.0, "scale": 0.7}, "lengths offset sinks", documents),
}


def drawn(call: str) -> Arrays:
    """The arrays of a call, whole."""
    asked, rng = CALLS[call], np.random.default_rng(5)
    h, g, s = asked.heads, asked.kv_heads, asked.keys
    shapes = {"q": (B, T, h, K), "k": (B, s, g, K), "v": (B, s, g, V)}
    arrays: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    arrays |= {"dy": rng.normal(size=(B, T, h, V)), "dlse": rng.normal(size=(B, h, T))}
    beside = {"sinks": rng.normal(size=h), "lengths": np.array([s, 2 * s // 3]), "offset": np.array([s - T, -3])}
    arrays |= {name: beside[name] for name in asked.arrays.split()}
    if asked.pattern is not None:
        arrays["query_documents"] = np.sort(rng.integers(0, 4, (B, T)), 1)
        arrays["key_documents"] = np.sort(rng.integers(0, 4, (B, s)), 1)
        arrays["marks"] = rng.random((B, s)) < 0.1
    return arrays


def cut_axis(name: str) -> int | None:
    """The axis of the positions of an array, a result or a gradient of attention; None if it has none."""
    return AXES.get(name, AXES.get(name.removeprefix("d")))


@cache
def held(call: str) -> tuple[Arrays, dict[str, ErrArray]]:
    """The arrays of a call, and one device's results and gradients with bounds."""
    arrays, asked = drawn(call), CALLS[call]
    named = {name: arrays[name] for name in asked.arrays.split()}
    lifted = {name: ErrArray(x, 0.0) for name, x in (arrays | named).items() if x.dtype.kind == "f"}
    options: dict[str, Any] = asked.options | {name: lifted.get(name, x) for name, x in named.items()}
    options |= {"pattern": asked.pattern and asked.pattern(arrays), "return_lse": True}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        (y, _, lse), pull = attn_np.value_and_vjp(attn_np.attend, *(lifted[name] for name in "qkv"), **options)
        arrays["dlse"] = np.where(np.isfinite(lse.v), arrays["dlse"], 0.0)
        grads: Any = pull(lifted["dy"], None, ErrArray(arrays["dlse"], 0.0)).inputs
    return arrays, {"y": y, "lse": lse} | {f"d{name}": x for name, x in grads.items()}


# Recurrences ----------------------------------------------------------------------------------------------------------

# The rule of a call, the arrays beside q, k and v, and the axes of its decay.
RECURRENCES: dict[str, tuple[str, str, str]] = {
    "linear": ("linear", "", ""),
    "linear, a state": ("linear", "beta state", ""),
    "gated": ("gated", "state", "b t g"),
    "gated, channels": ("gated", "beta", "b t g k"),
    "gated, of heads": ("gated", "state", "g"),
    "gated, channels of heads": ("gated", "", "g k"),
    "delta": ("delta", "beta state", ""),
    "gated_delta": ("gated_delta", "beta", "b t g"),
    "gated_delta, channels": ("gated_delta", "beta state", "b t g k"),
}


def drawn_recurrence(call: str) -> Arrays:
    """The arrays of a call, whole: keys of length 1, and a decay of 0 where positions have their own."""
    _, names, axes = RECURRENCES[call]
    rng, sizes = np.random.default_rng(3), {"b": B, "t": T, "g": G, "k": K}
    shapes = {"q": (B, T, 2 * G, K), "k": (B, T, G, K), "v": (B, T, G, V)}
    arrays: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    arrays["k"] /= np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
    beside = {"beta": rng.random((B, T, G)), "state": rng.normal(size=(B, G, K, V))}
    arrays |= {name: beside[name] for name in names.split()}
    if axes:
        arrays["decay"] = rng.uniform(0.3, 1.0, tuple(sizes[letter] for letter in axes.split()))
        if axes.startswith("b"):
            arrays["decay"][0, 3, 1] = 0.0
    return arrays | {"dy": rng.normal(size=(B, T, 2 * G, V)), "dlast": rng.normal(size=(B, G, K, V))}


def recurrence_axis(call: str, name: str) -> int | None:
    """The axis of the positions of an array, a result or a gradient of a recurrence; None if it has none."""
    shared = {"state", "dstate", "last", "dlast"}
    shared |= set() if RECURRENCES[call][2].startswith("b") else {"decay", "ddecay"}
    return None if name in shared else 1


@cache
def held_recurrence(call: str) -> tuple[Arrays, dict[str, ErrArray]]:
    """The arrays of a call, and one device's results and gradients with bounds."""
    arrays = drawn_recurrence(call)
    lifted: dict[str, Any] = {name: ErrArray(x, 0.0) for name, x in arrays.items()}
    dy, dlast = lifted.pop("dy"), lifted.pop("dlast")
    with precision(precision_of("float64")):
        (y, last), pull = attn_np.value_and_vjp(attn_np.recur, **lifted, rule=RECURRENCES[call][0], form="recurrent")
        grads: Any = pull(dy, dlast).inputs
    return arrays, {"y": y, "last": last} | {f"d{name}": x for name, x in grads.items()}


# Cut and joined by the functions of NumPy -----------------------------------------------------------------------------


def cut(x: np.ndarray, axis: int | None, devices: int, layout: str) -> np.ndarray:
    """The parts of an array, the devices first; an array that all devices have as it is."""
    if axis is None:
        return x
    parts = to_devices(np.moveaxis(x, axis, 1), devices=devices, layout=layout)
    return np.moveaxis(parts, 2, axis + 1)


def joined(x: np.ndarray, axis: int | None, layout: str) -> np.ndarray:
    """The inverse."""
    if axis is None:
        return x
    return np.moveaxis(from_devices(np.moveaxis(x, axis + 1, 2), layout=layout), 1, axis)


def position_axis(config: Any, name: str) -> int | None:
    """The axis of a layer's argument that is positions."""
    letters = config.arguments()[name].axes.split()
    return next((i for i, letter in enumerate(letters) if letter in "ts"), None)
