"""Who may attend to whom, where queries and keys lie on several devices."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from attn_jax.attention.functions import to_python_scalar
from attn_jax.ops import known_range
from attn_jax.ops.specs import checked_specs, spec_of
from attn_jax.parallel.layouts import positions
from attn_jax.parallel.messages import AxisName, axis_size, check_differs, gather
from attn_np.contract import _functions as functions_contract
from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import At, Pattern, check_pattern


def visible_by_position(
    who: str, q: Array, k: Array, v: Array, *, axis_name: AxisName, sinks: Array | None, layout: Any, causal: Any,
    window: Any, pattern: Any, offset: Any, lengths: Array | None, scale: Any, softcap: Any,
) -> Pattern | None:  # fmt: skip
    """Who may attend to whom, for this device's queries and keys; None if everyone to everyone.

    A call that cannot be right is refused.
    """
    contract.check_shards(who, checked_specs(who, q=q, k=k, v=v, sinks=sinks), layout)
    n, (b, t), s = axis_size(who, axis_name), q.shape[:2], k.shape[1]
    check_differs(who, axis_name, q=q, k=k, v=v)
    contract.check_numbers(scale, softcap, to_python_scalar)
    causal, offset = to_python_scalar(causal), to_python_scalar(offset)
    window = functions_contract.python_window(window, to_python_scalar)
    if hasattr(offset, "shape") and offset.shape == ():
        offset = jnp.broadcast_to(offset, (b,))
    check_masking(who, q, k, causal, window, pattern, offset, lengths)
    check_pattern(who, pattern, {"b": b, "t": t, "s": s}, spec_of)
    pattern = contract.pattern_of_call(causal, window, pattern, lengths)
    if pattern is None:
        return None
    start = n * (s - t) if offset is None else offset[:, None] if hasattr(offset, "shape") else offset
    query_positions, key_positions = (positions(length, axis_name=axis_name, layout=layout) for length in (t, s))
    return At(pattern, jnp.broadcast_to(query_positions + start, (b, t)), jnp.broadcast_to(key_positions, (b, s)))


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


def seen_by_all(visible: Pattern | None, axis_name: AxisName) -> Any:
    """The pattern for the queries of all devices."""
    return visible and visible.map(lambda axes, x: gather(x, axis_name) if axes == "b t" else x)
