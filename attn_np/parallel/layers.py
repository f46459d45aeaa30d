"""Whole layers over a sequence that lies on several devices, which are the first axis of every array."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np.attention.decode import DecodeStep
from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import Pattern
from attn_np.ops import Array
from attn_np.ops.specs import spec_of
from attn_np.parallel.attention import ring_attend
from attn_np.parallel.layouts import from_devices, positions
from attn_np.parallel.recurrence import run_form
from attn_np.parallel.visibility import pattern_of_rows


def apply(
    layer: Any,
    query: Array,
    *inputs: Array,
    layout: str = "contiguous",
    pattern: Pattern | None = None,
    **options: Any,
) -> Any:
    """What a causal layer gives for a whole sequence, of which each device has a part: `n b t o`.

    Where the layer's core is `attend`, keys travel around the ring of `ring_attend`. Where scores have terms of their
    own, or there are learned keys, each device gets the keys of all. A state that is linear in the one before it goes
    from device to device as in `recur`, and a short convolution gets the last positions of the devices before. Nothing
    else is sent. There is no backward pass.

    Args:
        layer: a layer of ours.
        query: the inputs, `n b t d`, as `to_devices` cuts them.
        inputs, options: further arguments of the layer's call, those with positions with the devices first; no masks
            and no biases, whose pairs lie on several devices.
        layout: which positions each device has: "contiguous", "zigzag" or "striped"; the first with a state.
        pattern: who may attend to whom besides, by position in the whole sequence, where keys travel around the ring;
            with arrays `n b t` of queries, `n b s` of keys, and `b`, as `patterns.Documents` of packed documents.

    Raises:
        ValueError: a layer that is not causal, one with a state in another layout, a mask or a bias, dropout in
            training, an unknown layout, a length that it does not divide, or a pattern that the layer cannot take.
        TypeError: what is no pattern.
    """
    config = layer.config
    contract.check_layer(config, layer.training, options, layout, pattern)
    spec = spec_of(config.variant, "query", query)
    n, b, t = contract.check_query(config.variant, spec, layout, axes="n b t d")
    here = positions(t, devices=n, layout=layout)
    if pattern is not None:
        pattern_of_rows(f"apply: {config.variant}", pattern, {"n": n, "b": b, "t": t, "s": t})

    def rows(x: Any) -> Any:
        """The devices as rows of the batch, which compute at once."""
        if isinstance(x, tuple):  # cosines and sines
            return tuple(map(rows, x))
        return x.reshape(-1, *x.shape[2:]) if isinstance(x, np.ndarray) and x.shape[:3] == (n, b, t) else x

    def devices(x: Array) -> Array:
        return x.reshape(n, b, *x.shape[1:])

    def gather(x: Array) -> Array:
        whole = from_devices(devices(x), layout=layout)
        return np.broadcast_to(whole, (n, *whole.shape)).reshape(-1, *whole.shape[1:])

    def ring(q: Array, k: Array, v: Array, pattern: Any, **asked: Any) -> Array:
        return rows(ring_attend(devices(q), devices(k), devices(v), pattern=pattern, layout=layout, **asked))

    def before(x: Array, size: int) -> Array:
        tails = devices(x)[:, :, max(0, t - size) :]
        whole = from_devices(tails, layout=layout)
        whole = np.concatenate([np.zeros((b, size, *whole.shape[2:]), whole.dtype), whole], 1)
        starts = range(0, n * tails.shape[2], tails.shape[2])
        return np.concatenate([whole[:, start : start + size] for start in starts])

    cache: Any = SimpleNamespace(arrays=dict.fromkeys(config.cache_axes()), max_length=n * t)
    step = DecodeStep(
        cache, None, None, np.full(n * b, n * t), np.ones((n * b, t), np.bool_),
        query_positions=np.repeat(here, b, 0),
        key_positions=np.broadcast_to(np.arange(n * t), (n * b, n * t)),
        head_axis=contract.has_head_axis(config), gather=gather, ring=ring,
        recur=lambda form, v, first: run_form(form, v, first, n), before=before, pattern=pattern,
    )  # fmt: skip
    y = layer(rows(query), *map(rows, inputs), **{name: rows(x) for name, x in options.items()}, step=step)
    return tuple(map(devices, y)) if isinstance(y, tuple) else devices(y)
