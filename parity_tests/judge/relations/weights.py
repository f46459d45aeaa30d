"""Relations of weights: they add up to one, and scores that are shifted, doubled or made equal act as they must."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.calls import (
    Call,
    Subject,
    allowed,
    attends,
    complete,
    field,
    keyed,
    louder,
    may_have,
    moved,
    ordered,
    over_keys,
    score_shape,
    spread_bias,
    weighs,
)
from parity_tests.judge.relations.relation import Pair, Relation, both, relation

RELATIONS: dict[str, Relation] = {}


def weights_name(config: Config) -> str:
    return "out1" if attends(config) else "out2"


def without_bias(call: Call) -> Call:
    """Scores of queries and keys alone: no bias is given, and forget gates are wide open, whose logarithm is then 0."""
    if attends(call.config):
        call = call.given(bias=None)
    if "w_forget" in call.params:
        w, b = call.params["w_forget"], call.params["b_forget"]
        call = call.with_params(w_forget=np.zeros_like(w), b_forget=np.full_like(b, 2.0**11))
    return call


@relation(RELATIONS)
def weights_add_up_to_one(s: Subject, call: Call) -> Iterator[Pair]:
    """Over what is allowed; what is hidden weighs exactly 0."""
    config = call.config
    if not weighs(config):
        return
    weights, seen = s.bounded(call)[weights_name(config)], allowed(call)
    axis = -1 if over_keys(config) else -2
    yield "sum", np.sum(weights, axis=axis), seen.any(axis).astype(np.float64)
    yield "hidden", weights.v[~seen], np.zeros(int(np.sum(~seen)))
    yield "negative", np.minimum(weights.v, 0.0), np.zeros(weights.shape)


@relation(RELATIONS)
def a_query_without_keys_gives_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """Or the bias of the output projection, where there is one."""
    if attends(call.config) and over_keys(call.config):
        shape = score_shape(call)
        mask = np.broadcast_to(call.inputs.get("mask", True), shape).copy()
        mask[0, ..., shape[-2] // 2, :] = False
        y = s.run(call.given(mask=mask))["y"][0, shape[-2] // 2]
        yield "y", y, np.broadcast_to(call.params.get("b_o", 0.0), y.shape)


@relation(RELATIONS)
def a_constant_on_all_scores_changes_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """As many scores as a softmax sees together may rise by one number."""
    if attends(call.config):
        bias = spread_bias(call)
        axis = -1 if over_keys(call.config) else -2
        step = np.random.default_rng(1).integers(-8, 8, size=bias.shape).take([0], axis).astype(np.float64)
        yield from both(s.bounded(call.given(bias=bias + step)), s.bounded(call.given(bias=bias)))


@relation(RELATIONS)
def a_large_bias_decides(s: Subject, call: Call) -> Iterator[Pair]:
    """A score 2^12 above the others takes all the weight, exactly; one as far below gets none."""
    if attends(call.config) and over_keys(call.config):
        keys = score_shape(call)[-1]
        for sign in (1.0, -1.0) if keys > 1 else (1.0,):
            bias = np.zeros(score_shape(call))
            bias[..., 0] = sign * 2.0**12
            found = s.run(call.given(bias=bias, mask=None).with_fields(**unordered(call.config)))["out1"][..., 0]
            yield f"weight at {sign:+g}", found, np.full(found.shape, float(sign > 0))


def unordered(config: Config) -> dict[str, Any]:
    """Fields that let every query see every key, as far as the contract takes them."""
    fields: dict[str, Any] = {"causal": False, "window": None}
    return {name: value for name, value in fields.items() if may_have(config, **{name: value})}


@relation(RELATIONS)
def every_key_twice_changes_nothing(s: Subject, call: Call) -> Iterator[Pair]:
    """The two share the weight that the one had."""
    config, call = call.config, complete(call)
    if keyed(config) and not ordered(config) and over_keys(config):
        twice = np.repeat(np.arange(score_shape(call)[-1]), 2)
        got, want = s.bounded(moved(call, "s", twice)), s.bounded(call)
        yield "y", got["y"], want["y"]
        yield "weights", got["out1"], want["out1"][..., twice] * 0.5


@relation(RELATIONS)
def twice_the_scores_square_the_weights(s: Subject, call: Call) -> Iterator[Pair]:
    """Without a bias, and with twice the softcap where there is one: p_j^2 / sum p_i^2."""
    config = call.config
    if attends(config) and over_keys(config):
        plain = without_bias(call)
        cap = {} if field(config, "softcap") is None else {"softcap": 2 * field(config, "softcap")}
        p = s.bounded(plain)["out1"]
        yield (
            "weights",
            s.bounded(louder(plain, 2.0).with_fields(**cap))["out1"] * np.sum(p * p, -1, keepdims=True),
            p * p,
        )


@relation(RELATIONS)
def indifferent_scores_share_evenly(s: Subject, call: Call) -> Iterator[Pair]:
    """All scores 0: every allowed key weighs the same."""
    if not weighs(call.config):
        return
    seen, axis = allowed(call), -1 if over_keys(call.config) else -2
    count = np.maximum(seen.sum(axis, keepdims=True), 1).astype(np.float64)
    weights = s.bounded(louder(without_bias(call), 0.0))
    yield "weights", weights[weights_name(call.config)] * count, seen.astype(np.float64)


@relation(RELATIONS)
def loud_scores_stay_finite(s: Subject, call: Call) -> Iterator[Pair]:
    """Scores far beyond what exp can take."""
    if weighs(call.config):
        for name, x in s.run(louder(call, 2.0**14)).items():
            yield name, np.isfinite(x), np.ones(x.shape)
