"""The contract of `parallel`: layouts, and the checks of its functions' arguments, with the standard library alone."""

from collections.abc import Callable, Mapping, Sequence
from math import lcm
from typing import Any

from attn_np.contract._attend import Options
from attn_np.contract._base import FLOATS, Spec, check_present, field_error, is_integer, require
from attn_np.contract._functions import as_pattern, check_floats, python_numbers
from attn_np.contract._patterns import Pattern, Prefix

# Which positions of a sequence each device has. "contiguous": one piece each. "zigzag": of twice as many chunks as
# there are devices, device i has chunk i and the ith from the end, so that all see as many keys under causality.
# "striped": every nth position.
LAYOUTS = ("contiguous", "zigzag", "striped")


def shard_positions(device: Any, devices: int, t: int, layout: str, i: Any) -> Any:
    """The positions that a device's entries i have in the whole sequence; integers or arrays of them.

    Args:
        device: its number, from 0.
        devices: how many there are.
        t: how many positions each of them has.
        layout: one of `LAYOUTS`.
        i: the numbers of its entries, from 0 to t - 1.
    """
    if layout == "contiguous":
        return device * t + i
    if layout == "striped":
        return device + devices * i
    half = max(1, t // 2)
    chunk = device + i // half * (2 * devices - 1 - 2 * device)
    return chunk * half + i % half


def check_layout(who: str, layout: Any) -> None:
    """Refuse what is no layout.

    Raises:
        ValueError: naming it.
    """
    fits = isinstance(layout, str) and layout in LAYOUTS
    require(fits, who, f"layout to be one of {', '.join(LAYOUTS)}", repr(layout), "set layout=")


def check_shard_length(who: str, name: str, t: int, layout: str) -> None:
    """Refuse a shard that cannot be cut into the two chunks of a zigzag.

    Raises:
        ValueError: an odd number of positions.
    """
    expected = f"{name} with an even number of positions on each device for layout='zigzag'"
    require(layout != "zigzag" or t % 2 == 0, who, expected, t, "pad the sequence to a multiple of twice the devices")


def check_cut(who: str, shape: tuple[int, ...], devices: Any, layout: Any) -> None:
    """Refuse a sequence that cannot be divided among the devices.

    Raises:
        ValueError: no number of devices, no axis of positions, or a length that the layout does not divide.
    """
    check_layout(who, layout)
    is_count = is_integer(devices) and devices > 0
    require(is_count, who, "devices to be an integer of at least 1", repr(devices), "say how many devices there are")
    require(len(shape) >= 2, who, "x with the axes b t ...", shape, "put the batch first, then the positions")
    factor = 2 * devices if layout == "zigzag" else devices
    expected = f"positions in a multiple of {factor}, for {devices} devices and layout={layout!r}"
    require(
        shape[1] % factor == 0, who, expected, shape[1], "pad the sequence at its end; without causality, say lengths="
    )


def check_parts(who: str, shape: tuple[int, ...], layout: Any, axes: str) -> None:
    """Refuse parts that cannot be joined.

    Args:
        who: the function.
        shape: that of all parts, or of one device's.
        layout: as the call gets it.
        axes: the first axes of the shape, "n b t" or "b t".

    Raises:
        ValueError: fewer axes, no devices, or a length that the layout does not divide.
    """
    check_layout(who, layout)
    letters = axes.split()
    fits = len(shape) >= len(letters) and (axes != "n b t" or shape[0] > 0)
    require(fits, who, f"x with the axes {axes} ...", shape, "pass what to_devices returns, or a result for it")
    check_shard_length(who, "x", shape[len(letters) - 1], layout)


def check_device_axes(who: str, specs: Mapping[str, Spec | None]) -> int:
    """How many devices there are, where they are the first axis of every array; refuses arrays with other numbers.

    Raises:
        ValueError: an array with another first axis.
        TypeError: no queries.
    """
    devices = (*check_present(who, "q", specs["q"])[0], 0)[0]
    fix = "put the devices first, as to_devices does"
    require(devices > 0, who, "q with the devices as its first axis", specs["q"] and specs["q"][0], fix)
    for name, spec in specs.items():
        fits = spec is None or spec[0][:1] == (devices,)
        require(fits, who, f"{name} of {devices} devices, as q", spec and spec[0], fix)
    return devices


def check_shards(who: str, specs: Mapping[str, Spec | None], layout: Any) -> None:
    """Refuse the arrays of one device that cannot be right.

    Args:
        who: the function.
        specs: of q, k and v, and of sinks where they may be given.
        layout: as the call gets it.

    Raises:
        ValueError: a shape that does not fit, or an unknown layout.
        TypeError: a missing array or another dtype.
    """
    check_layout(who, layout)
    q, k, v = (check_present(who, name, specs[name]) for name in "qkv")
    for name, (shape, _) in (("q", q), ("k", k), ("v", v)):
        require(len(shape) == 4, who, f"{name} with four axes on each device", shape, "batch, positions, heads, width")
    (b, t, h, width), (s, g), value_width = q[0], k[0][1:3], v[0][3]
    fix = "q is b t h k, k is b s g k, v is b s g v, sinks are h"
    for name, shape in {"k": (b, s, g, width), "v": (b, s, g, value_width), "sinks": (h,)}.items():
        spec = specs.get(name)
        require(spec is None or spec[0] == shape, who, f"{name} of shape {shape}", spec and spec[0], fix)
    if g <= 0 or h % g:
        raise field_error(who, f"queries with a multiple of the {g} heads of keys and values", h, "repeat some heads")
    for name, (_, dtype) in (("q", q), ("k", k), ("v", v)):
        allowed = FLOATS if name == "q" else (q[1],)
        if dtype not in allowed:
            raise TypeError(f"{who}: expected {name} of dtype {' or '.join(allowed)}, got {dtype}; convert it")
    if specs.get("sinks"):
        check_floats(who, "sinks", specs["sinks"])
    check_shard_length(who, "queries", t, layout)
    check_shard_length(who, "keys", s, layout)


def check_recur_shards(specs: Mapping[str, Spec | None], devices: int) -> None:
    """Refuse the arrays of all devices' `recur` that do not belong together, where its own check would not see it.

    Args:
        specs: of q, k, v, beta, decay and state; the devices are the first axis of all but some decays and the state.
        devices: how many there are.

    Raises:
        ValueError: naming the array.
    """
    for name in "qkv":
        shape = check_present("recur", name, specs[name])[0]
        fix = "devices, batch, positions, heads, width: cut it by to_devices"
        require(len(shape) == 5, "recur", f"{name} with five axes", shape, fix)
    (_, b, t, g, width), value_width = check_present("recur", "k", specs["k"])[0], (specs["v"] or ((0,), ""))[0][-1]
    state, decay = specs["state"], specs["decay"]
    shape = (b, g, width, value_width)
    require(state is None or state[0] == shape, "recur", f"state of shape {shape}", state and state[0], "b g k v")
    shapes = (g,), (g, width), (devices, b, t, g), (devices, b, t, g, width)
    fits = decay is None or decay[0] in shapes
    expected = f"decay of shape (g,), (g, k), (n, b, t, g) or (n, b, t, g, k), with n={devices}, b={b}, t={t}, g={g}"
    require(fits, "recur", expected, decay and decay[0], "give one for each head, or for each channel of the keys")


def check_numbers(scale: Any, softcap: Any, to_python_scalar: Callable[[Any], Any]) -> None:
    """Refuse a scale or a softcap that `attend` refuses, before anything is sent.

    Raises:
        ValueError: naming it.
    """
    numbers = python_numbers(to_python_scalar, scale, softcap, 0.0)
    words: dict[str, Any] = {"causal": False, "window": None, "normalize_over": "keys", "implementation": "auto"}
    Options(**words, scale=numbers["scale"], softcap=numbers["softcap"])


def check_heads(who: str, heads: int, devices: int) -> None:
    """Refuse heads that cannot be divided among the devices.

    Raises:
        ValueError: naming both.
    """
    expected = f"queries with a multiple of {devices} heads, one for each device"
    require(heads % devices == 0, who, expected, heads, "call ring_attend or gather_attend, or take fewer devices")


def head_copies(kv_heads: int, devices: int) -> int:
    """How often each key/value head is repeated so that the devices divide them."""
    return lcm(kv_heads, devices) // kv_heads


def pattern_of_call(causal: bool, window: Any, pattern: Pattern | None, lengths: Any) -> Pattern | None:
    """Who may attend to whom by the positions of the whole sequence; None if everyone to everyone."""
    visible = as_pattern(causal, window, pattern)
    if lengths is None:
        return visible
    return Prefix(lengths) if visible is None else visible & Prefix(lengths)


def check_array_of_pattern(who: str, axes: str, spec: Spec | None, sizes: Mapping[str, int]) -> None:
    """Refuse an array of a pattern that has not the devices as its first axis, or other sizes.

    Raises:
        ValueError: naming both shapes.
    """
    shape = tuple(sizes[letter] for letter in axes.split())
    expected = f"an array of the pattern of shape {axes} = {shape}"
    require(spec is not None and spec[0] == shape, who, expected, spec and spec[0], "cut it by to_devices")


def key_arrays(pattern: Pattern | None) -> list[Any]:
    """The arrays of a pattern that belong to the keys, which travel with them."""
    return [] if pattern is None else [x for axes, x in pattern.arrays() if axes == "b s"]


def with_key_arrays(pattern: Pattern | None, arrays: Sequence[Any]) -> Any:
    """The pattern with those of other keys."""
    remaining = iter(arrays)
    return pattern and pattern.map(lambda axes, x: next(remaining) if axes == "b s" else x)


# Whole layers ---------------------------------------------------------------------------------------------------------


def check_layer(
    config: Any, training: bool, options: Mapping[str, Any], layout: Any, pattern: Pattern | None = None
) -> None:
    """Refuse a layer that cannot run with its sequence on several devices, and arguments that know no devices.

    Raises:
        ValueError: a layer that is not causal, one with a state in another layout than a contiguous one or with a
            pattern, masks and biases, positions, or dropout in training.
    """
    who, axes = f"apply: {config.variant}", config.cache_axes()
    fix = ("set causal=True, or " if hasattr(config, "causal") else "") + "shard its batch and heads"
    require(bool(axes), who, "a causal layer", config.why_no_cache(), fix)
    states = [name for name, letters in axes.items() if "s" not in letters.split()]
    if states:  # every layer's that is cached is linear in the one before
        check_layout(who, layout)
        fix = "a state goes from each position to the next one"
        require(layout == "contiguous", who, "layout='contiguous' for a layer with a state", repr(layout), fix)
        fix = "say documents="
        require(pattern is None, who, "a layer without a state for pattern=", "one with a state", fix)
    by_pair = {name for name, arg in config.arguments().items() if {"t", "s"} <= set(arg.axes.split())}
    refused = {"mask", "bias", "keep", "step"} | by_pair
    given = [name for name, x in options.items() if name in refused and x is not None]
    require(not given, who, "arguments that know of devices", f"{' and '.join(given)}=", "leave them out")
    known = {*config.arguments(), "tape", "return_weights", "implementation"}
    known |= {"positions"} if isinstance(options.get("positions"), tuple) and hasattr(config, "rope_base") else set()
    unknown = [name for name in options if name not in known]
    fix = {
        "positions": "leave it out: apply says which positions each device has",
        "documents": "say pattern=patterns.Documents(d, d), with d the numbers on this device",
    }.get(unknown[0] if unknown else "", "see help of the layer's call")
    require(not unknown, who, "arguments of the layer's call", " and ".join(unknown), fix)
    is_random = training and getattr(config, "dropout", 0) > 0
    require(not is_random, who, "a layer without dropout", "training mode and dropout", "call eval(), or set dropout=0")


def check_query(variant: str, spec: Spec | None, layout: Any, axes: str = "b t d") -> tuple[int, ...]:
    """How many sequences and positions one device has, in NumPy behind the number of devices; even in a zigzag.

    Raises:
        ValueError: other axes, an unknown layout, or an odd number.
        TypeError: no array.
    """
    who = f"apply: {variant}"
    check_layout(who, layout)
    shape = check_present(who, "query", spec)[0]
    require(len(shape) == len(axes.split()), who, f"query with the axes {axes}", shape, "pass what to_devices returns")
    fix = "cut longer sequences, or over fewer devices"
    require(shape[-2] > 0, who, "at least one position on each device", shape, fix)
    check_shard_length(who, "query", shape[-2], layout)
    return shape[:-1]


def has_head_axis(config: Any) -> bool:
    """Whether attention matrices are `b h t s`, not `b t s`."""
    mask = config.arguments().get("mask")
    return mask is not None and "h" in mask.axes.split()
