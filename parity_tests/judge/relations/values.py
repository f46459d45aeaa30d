"""Relations of values and dropout: the output is a mean of values, and what dropout leaves."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.judge.calls import Call, Subject, allowed, attends, complete, field, keyed, over_keys, score_shape
from parity_tests.judge.relations.relation import Pair, Relation, both, relation

RELATIONS: dict[str, Relation] = {}


@relation(RELATIONS)
def outputs_stay_among_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """Without projections and dropout no output is above the largest or below the smallest value a query sees."""
    if keyed(call.config) and "w_v" not in call.params and over_keys(call.config):
        call = complete(call).given(keep=None)
        y, seen, v = s.bounded(call)["y"], allowed(call)[..., None], call.inputs["value"][:, None]
        low, high = (np.where(seen, v, sign * np.inf) for sign in (1, -1))
        low, high = low.min(2, initial=np.inf), high.max(2, initial=-np.inf)
        some = seen.any(2)
        yield "y", y, np.where(some, np.clip(y.v, low, high), 0.0)


@relation(RELATIONS)
def the_output_is_linear_in_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """Half of the values and the other half give, together, what all of them give."""
    call = complete(call)
    if keyed(call.config):
        v = call.inputs["value"]
        even = (np.arange(v.shape[1]) % 2 == 0)[:, None]
        y = [s.bounded(call.given(value=x))["y"] for x in (v, 0.0 * v, np.where(even, v, 0.0), np.where(even, 0.0, v))]
        yield "y", y[0] + y[1], y[2] + y[3]


@relation(RELATIONS)
def the_output_is_the_weights_times_the_values(s: Subject, call: Call) -> Iterator[Pair]:
    """The returned weights, after dropout, average the projected values; heads are joined by the last projection."""
    call, w = complete(call), call.params
    if not attends(call.config):
        return
    sizes = call.config.sizes()
    found, heads = s.bounded(call), "h" in sizes
    if "g" in sizes and sizes["h"] % sizes["g"] != 0:  # the heads of values are not those of the weights
        return
    keep = np.broadcast_to(call.inputs.get("keep", True), score_shape(call))
    rate = field(call.config, "dropout", 0.0) if call.has("keep") else 0.0
    weights = np.where(keep, found["out1"] / (1.0 - rate), 0.0)
    values: Any = ErrArray(call.inputs["value" if keyed(call.config) else "query"], 0.0)
    w_v, b_v = (w["w_qkv"][:, 2], w.get("b_qkv", [None] * 3)[2]) if "w_qkv" in w else (w.get("w_v"), w.get("b_v"))
    if heads and w_v is None:  # the values of a head are made otherwise
        return
    if w_v is not None:
        values = np.sum(values.reshape(*values.shape, *(1,) * (w_v.ndim - 1)) * w_v, axis=2)
        values = values if b_v is None else values + b_v
    if heads and w_v is not None and values.shape[2] != sizes["h"]:  # heads of values are shared
        values = np.repeat(values, sizes["h"] // values.shape[2], axis=2)
    if heads:
        values = np.moveaxis(values, 2, 1)
    context = np.sum(weights.reshape(*weights.shape, 1) * np.expand_dims(values, -3), axis=-2)
    if heads:
        context = np.moveaxis(context, 1, 2)
    y = context.reshape(*context.shape[:2], -1)
    if "w_o" in w:
        w_o = w["w_o"].reshape(-1, w["w_o"].shape[-1])
        y = np.sum(y.reshape(*y.shape, 1) * w_o, axis=2) + w.get("b_o", 0.0)
    yield "y", found["y"], y


@relation(RELATIONS)
def weights_do_not_know_dropout(s: Subject, call: Call) -> Iterator[Pair]:
    """They are returned as they were before it."""
    if attends(call.config) and call.has("keep"):
        yield "weights", s.run(call)["out1"], s.run(call.given(keep=None))["out1"]


def without_keeps(call: Call) -> Call:
    return call.given(**{name: None for name in call.inputs if name.endswith("keep")})


@relation(RELATIONS)
def evaluation_drops_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    call = without_keeps(call)
    if "dropout" in call.config.fields():
        yield from both(s.run(call.with_fields(dropout=0.5)), s.run(call.with_fields(dropout=0.0)))


@relation(RELATIONS)
def keeping_everything_is_no_dropout(s: Subject, call: Call) -> Iterator[Pair]:
    if "dropout" not in call.config.fields():
        return
    call = call.with_fields(dropout=0.0)
    whole = {name: np.ones(x.shape, bool) for name, x in call.inputs.items() if name.endswith("keep")}
    yield from both(s.run(call.given(**whole)), s.run(without_keeps(call)))


@relation(RELATIONS)
def the_output_bias_shifts_the_output(s: Subject, call: Call) -> Iterator[Pair]:
    for name in ("b_o", "decoder.b_o"):
        if name in call.params:
            b = call.params[name]
            other = np.cos(np.arange(b.size)).reshape(b.shape)
            yield name, s.bounded(call.with_params(**{name: other}))["y"], s.bounded(call)["y"] - b + other
