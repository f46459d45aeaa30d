"""Who may attend to whom, where queries and keys lie on several devices."""

from typing import Any

import numpy as np

from attn_np.attention.functions import to_python_scalar
from attn_np.contract import _functions as functions_contract
from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import At, Pattern, check_class, check_pattern
from attn_np.ops import Array, known_range
from attn_np.ops.specs import checked_specs, spec_of
from attn_np.parallel.layouts import positions
from attn_np.parallel.messages import as_rows, by_device, gather


def visible_by_position(
    who: str, q: Array, k: Array, v: Array, *, sinks: Array | None, layout: Any, causal: Any, window: Any, pattern: Any,
    offset: Any, lengths: Array | None, scale: Any, softcap: Any,
) -> tuple[Pattern | None, list[Array]]:  # fmt: skip
    """Who may attend to whom, for the devices as rows of one batch, and the arrays of it that travel with the keys.

    A call that cannot be right is refused.
    """
    n, sizes = checked_sizes(who, q, k, v, sinks, layout)
    contract.check_numbers(scale, softcap, to_python_scalar)
    causal, offset = to_python_scalar(causal), to_python_scalar(offset)
    window = functions_contract.python_window(window, to_python_scalar)
    if hasattr(offset, "shape") and offset.shape == ():
        offset = np.broadcast_to(offset, q.shape[1:2])
    check_masking(who, q[0], k[0], causal, window, pattern, offset, lengths)
    if pattern is not None:
        pattern = pattern_of_rows(who, pattern, sizes)
    pattern = contract.pattern_of_call(causal, window, pattern, None if lengths is None else np.tile(lengths, n))
    if pattern is None:
        return None, []
    b, t, s = sizes["b"], sizes["t"], sizes["s"]
    start = n * (s - t) if offset is None else np.asarray(offset)[..., None]
    query_positions, key_positions = (
        np.broadcast_to(positions(length, devices=n, layout=layout)[:, None], (n, b, length)) for length in (t, s)
    )
    at = At(pattern, as_rows(query_positions + start), as_rows(key_positions))
    return at, [by_device(x, n) for x in contract.key_arrays(at)]


def checked_sizes(
    who: str, q: Array, k: Array, v: Array, sinks: Array | None, layout: Any
) -> tuple[int, dict[str, int]]:
    """How many devices there are, and the sizes of the axes on each; refuses arrays that do not fit."""
    array_specs = checked_specs(who, q=q, k=k, v=v)
    n = contract.check_device_axes(who, array_specs)
    shard_specs = {name: spec and (spec[0][1:], spec[1]) for name, spec in array_specs.items()}
    contract.check_shards(who, shard_specs | checked_specs(who, sinks=sinks), layout)
    return n, {"n": n, "b": q.shape[1], "t": q.shape[2], "s": k.shape[2]}


def check_masking(
    who: str, q: Array, k: Array, causal: Any, window: Any, pattern: Any, offset: Any, lengths: Array | None
) -> None:
    """Refuse what `attend` refuses in one device's call."""
    is_array = hasattr(offset, "shape")
    array_specs = checked_specs(who, q=q, k=k, lengths=lengths, offset=offset if is_array else None)
    functions_contract.check_offset_and_lengths(array_specs, None if is_array else offset, causal, window, pattern)
    if offset is not None:
        functions_contract.check_offset(known_range(offset) if is_array else (offset,))
    functions_contract.check_lengths(None if lengths is None else known_range(lengths))


def pattern_of_rows(who: str, pattern: Pattern, sizes: dict[str, int]) -> Pattern:
    """A pattern with the arrays of all devices, `n b t`, `n b s` and `b`, as that of the rows of one batch."""
    if not isinstance(pattern, Pattern):
        check_pattern(who, pattern, sizes, spec_of)  # which refuses it
    check_class(pattern)

    def of_rows(axes: str, x: Any) -> Array:
        spec, axes_of_devices = spec_of(who, "an array of the pattern", x), axes if axes == "b" else f"n {axes}"
        contract.check_array_of_pattern(who, axes_of_devices, spec, sizes)
        return np.tile(x, sizes["n"]) if axes == "b" else as_rows(x)

    pattern = pattern.map(of_rows)
    check_pattern(who, pattern, sizes | {"b": sizes["n"] * sizes["b"]}, spec_of)
    return pattern


def seen_by_all(visible: Pattern | None, n: int) -> Any:
    """The pattern for queries of all devices on every device."""

    def of_all(axes: str, x: Array) -> Array:
        return as_rows(gather(by_device(x, n))) if axes == "b t" else x

    return visible and visible.map(of_all)
