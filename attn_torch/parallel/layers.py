"""Whole layers over a sequence that lies on several processes of `torch.distributed`."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import Pattern, check_pattern
from attn_torch.attention.decode import DecodeStep
from attn_torch.ops.specs import spec_of
from attn_torch.parallel.attention import ring_attend
from attn_torch.parallel.layouts import in_order, positions
from attn_torch.parallel.messages import described, group_of, last_before, same_call
from attn_torch.parallel.recurrence import run_form


def apply(
    layer: Any,
    query: Tensor,
    *inputs: Any,
    group: Any = None,
    layout: str = "contiguous",
    pattern: Pattern | None = None,
    **options: Any,
) -> Any:
    """What a causal layer gives for a whole sequence, of which this process has a part.

    Where the layer's core is `attend`, keys travel around the ring of `ring_attend`. Where scores have terms of their
    own, there are learned keys, or weights are shown, each process gets the keys of all. A state that is linear in the
    one before it goes from process to process as in `recur`, and a short convolution gets the last positions of the
    others. Nothing else is sent.

    Args:
        layer: a layer of ours, in the same state in every process.
        query: this process's inputs, `b t d`, as `to_devices` cuts them.
        inputs, options: further arguments of the layer's call, this process's part of those with positions; no masks
            and no biases, whose pairs lie in several processes.
        group: a process group, or a `DeviceMesh` with one axis; all processes by default.
        layout: which positions each process has: "contiguous", "zigzag" or "striped"; the first with a state.
        pattern: who may attend to whom besides, by position in the whole sequence, where keys travel around the ring;
            with this process's arrays `b t` of queries, `b s` of keys, and `b`, as `patterns.Documents` of packed
            documents.

    Returns:
        What the layer returns, for this process's queries.

    Raises:
        ValueError: a layer that is not causal, one with a state in another layout, a mask or a bias, dropout in
            training, an unknown layout, a length that it does not divide, a pattern that the layer cannot take, or
            another call in another process.
        TypeError: what is no pattern.
    """
    config, group = layer.config, group_of("apply", group)

    def describe() -> tuple[str, tuple[int, int]]:
        contract.check_layer(config, layer.training, options, layout, pattern)
        b, t = contract.check_query(config.variant, spec_of(config.variant, "query", query), layout)
        check_pattern(f"apply: {config.variant}", pattern, {"b": b, "t": t, "s": t}, spec_of)
        given = {"query": query, "pattern": pattern, "tape": None, **dict(sorted(options.items()))}
        given |= {f"input {i}": x for i, x in enumerate(inputs)}
        given["tape"] = options.get("tape") is not None  # what a tape holds is each process's own
        given |= {"layout": layout} | {name: getattr(config, name) for name in config.fields()}
        mode = "training" if layer.training else "evaluation"
        return "; ".join([f"{config.variant} in {mode}", *(described(name, x) for name, x in given.items())]), (b, t)

    b, t = same_call("apply", group, getattr(query, "device", "cpu"), describe)
    n, here = dist.get_world_size(group), positions(t, group=group, layout=layout, device=query.device)
    cache: Any = SimpleNamespace(arrays=dict.fromkeys(config.cache_axes()), max_length=n * t)
    step = DecodeStep(
        cache, None, None, torch.full((b,), n * t, device=query.device),
        torch.ones((b, t), dtype=torch.bool, device=query.device),
        query_positions=here.expand(b, t),
        key_positions=torch.arange(n * t, device=query.device).expand(b, n * t),
        head_axis=contract.has_head_axis(config),
        gather=partial(in_order, group=group, layout=layout),
        ring=partial(ring_attend, group=group, layout=layout),
        recur=partial(run_form, group=group),
        before=partial(last_before, group=group),
        pattern=pattern,
    )  # fmt: skip
    return layer(query, *inputs, **options, step=step)
