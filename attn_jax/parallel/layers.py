"""Whole layers over a sequence that lies on several devices, inside `jax.shard_map`."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jax import Array

from attn_jax.attention.decode import DecodeStep
from attn_jax.ops.specs import spec_of
from attn_jax.parallel.attention import ring_attend
from attn_jax.parallel.layouts import from_devices, positions
from attn_jax.parallel.messages import AxisName, axis_size, check_differs, gather, last_before
from attn_jax.parallel.recurrence import run_form
from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import Pattern, check_pattern


def apply(
    layer: Any,
    query: Array,
    *inputs: Any,
    axis_name: AxisName,
    layout: str = "contiguous",
    pattern: Pattern | None = None,
    **options: Any,
) -> Any:
    """What a causal layer gives for a whole sequence, of which this device has a part.

    Where the layer's core is `attend`, keys travel around the ring of `ring_attend`. Where scores have terms of their
    own, there are learned keys, or weights are shown, each device gets the keys of all. A state that is linear in the
    one before it goes from device to device as in `recur`, and a short convolution gets the last positions of the
    device before. Nothing else is sent.

    Args:
        layer: a layer of ours, in the same state on every device.
        query: this device's inputs, `b t d`, as `to_devices` orders them.
        inputs, options: further arguments of the layer's call, this device's part of those with positions; no masks
            and no biases, whose pairs lie on several devices.
        axis_name: the axis of the mesh that the sequence lies on, or several.
        layout: which positions each device has: "contiguous", "zigzag" or "striped"; the first with a state.
        pattern: who may attend to whom besides, by position in the whole sequence, where keys travel around the ring;
            with this device's arrays `b t` of queries, `b s` of keys, and `b`, as `patterns.Documents` of packed
            documents.

    Returns:
        What the layer returns, for this device's queries.

    Raises:
        ValueError: a layer that is not causal, one with a state in another layout, a mask or a bias, dropout in
            training, an unknown axis or layout, a length that it does not divide, or a pattern that the layer cannot
            take.
        TypeError: what is no pattern.
    """
    config = layer.config
    contract.check_layer(config, not layer.deterministic, options, layout, pattern)
    b, t = contract.check_query(config.variant, spec_of(config.variant, "query", query), layout)
    check_pattern(f"apply: {config.variant}", pattern, {"b": b, "t": t, "s": t}, spec_of)
    n, here = axis_size("apply", axis_name), positions(t, axis_name=axis_name, layout=layout)
    check_differs("apply", axis_name, query=query)
    cache: Any = SimpleNamespace(arrays=dict.fromkeys(config.cache_axes()), max_length=n * t)
    step = DecodeStep(
        cache, None, None, jnp.full(b, n * t), jnp.ones((b, t), bool),
        query_positions=jnp.broadcast_to(here, (b, t)),
        key_positions=jnp.broadcast_to(jnp.arange(n * t), (b, n * t)),
        head_axis=contract.has_head_axis(config),
        gather=lambda x: from_devices(gather(x, axis_name), devices=n, layout=layout),
        ring=partial(ring_attend, axis_name=axis_name, layout=layout),
        recur=partial(run_form, axis_name=axis_name),
        before=partial(last_before, axis_name=axis_name),
        pattern=pattern,
    )  # fmt: skip
    return layer(query, *inputs, **options, step=step)
