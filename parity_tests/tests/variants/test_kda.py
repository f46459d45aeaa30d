"""Kimi delta attention against scalar loops, its forms against each other, and the gated delta rule."""

from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest

from attn_np.contract import gated_delta
from attn_np.contract.kda import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.witness import bounded, layer_of, ratio, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, rank=4, chunk_size=3)
MIXED = replace(FORMS, conv_size=4)


# Scalar loops: S_t = (I - beta k k^T) diag(alpha) S_{t-1} + beta k v^T, one entry at a time ---------------------------


def projected(x: list[float], w: Any, h: int) -> list[float]:
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) for e in range(len(w[0][h]))]


def through(row: list[float], down: Any, up: Any, bias: Any, h: int) -> list[float]:
    """Two projections with a latent in between."""
    latent = [sum((a * line[z] for a, line in zip(row, down, strict=True)), 0.0) for z in range(len(up))]
    return [a + b for a, b in zip(projected(latent, up, h), bias[h], strict=True)]


def swish(x: float) -> float:
    return x / (1 + exp(-x))


def mixed(rows: list[list[float]], weights: Any) -> list[list[float]]:
    """Each number of a row by its own weights, the last of them for the row itself, the others for those before."""
    found = []
    for t, row in enumerate(rows):
        spans = [(rows[t - back], w) for back, w in enumerate(reversed(weights)) if back <= t]
        found.append([sum(step[c] * w[c] for step, w in spans) for c in range(len(row))])
    return found


def unit(config: Config, x: list[float]) -> list[float]:
    x = [swish(a) for a in x]
    size = sqrt(sum(a * a for a in x) + (config.qk_norm_eps or config.norm_eps))
    return [a / size for a in x]


def stepped(state: Any, k: list[float], v: list[float], alpha: list[float], beta: float) -> list[list[float]]:
    """The state as the paper has it: (I - beta k k^T) diag(alpha) times the state, plus beta k v^T."""
    width = range(len(k))
    keeps = [[((i == j) - beta * k[i] * k[j]) * alpha[j] for j in width] for i in width]
    return [[sum(keeps[i][j] * state[j][c] for j in width) + beta * k[i] * v[c] for c in range(len(v))] for i in width]


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence."""
    y = [[0.0] * len(w["w_o"][0][0]) for _ in x]
    for h in range(config.num_heads):
        key_head = h * (config.num_key_heads or config.num_heads) // config.num_heads
        head = {"q": key_head, "k": key_head, "v": h}
        parts = {name: [projected(row, w[f"w_{name}"], head[name]) for row in x] for name in "qkv"}
        if config.conv_size is not None:
            taps = {name: [tap[head[name]] for tap in w[f"w_{name}_conv"]] for name in "qkv"}
            parts = {name: mixed(rows, taps[name]) for name, rows in parts.items()}
        state = [[0.0] * len(w["w_v"][0][h]) for _ in w["w_k"][0][0]]
        for t, row in enumerate(x):
            q, k = (unit(config, parts[name][t]) for name in "qk")
            v = [swish(a) for a in parts["v"][t]]
            beta = 1 / (1 + exp(-sum(a * line[h] for a, line in zip(row, w["w_beta"], strict=True))))
            steps = through(row, w["w_a_down"], w["w_a_up"], w["dt_bias"], h)
            state = stepped(state, k, v, [exp(-exp(w["a_log"][h]) * log(1 + exp(a))) for a in steps], beta)
            o = [sum(q[i] * line[c] for i, line in enumerate(state)) / sqrt(len(q)) for c in range(len(v))]
            size = sqrt(sum(a * a for a in o) / len(o) + config.norm_eps)
            gates = through(row, w["w_gate_down"], w["w_gate_up"], w["b_gate"], h)
            for c, a in enumerate(o):
                for d in range(len(w["w_o"][0][0])):
                    y[t][d] += a / size * w["w_norm"][c] / (1 + exp(-gates[c])) * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# The rule that it contains --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_with_decays_alike_in_all_channels_it_is_the_gated_delta_rule(name: str, form: str) -> None:
    """Up-projections that repeat one column: the context is that of the gated delta rule."""
    tree, config = TREES[name], replace(MIXED, form=form)
    fields = {key: getattr(config, key) for key in gated_delta.Config.fields()}
    plain = gated_delta.Config(**fields)
    weights, x = weights_of(config), {"query": np.random.default_rng(1).normal(size=(2, 7, 5))}
    weights |= {key: np.repeat(weights[key][..., :1], 3, -1) for key in ("w_a_up", "dt_bias")}
    given = {key: w for key, w in weights.items() if key in plain.shapes()}
    given |= {"w_a": weights["w_a_down"] @ weights["w_a_up"][..., 0], "dt_bias": weights["dt_bias"][:, 0]}
    given |= {"w_gate": np.einsum("dz,zhv->dhv", weights["w_gate_down"], weights["w_gate_up"])}
    contexts = [tree.trace(layer_of(tree, c, w), x)[1]["context"] for c, w in ((config, weights), (plain, given))]
    gate = np.einsum("btd,dhv->bthv", x["query"], given["w_gate"]) + weights["b_gate"]

    def outputs(context: np.ndarray) -> np.ndarray:
        unit = context / np.sqrt((context * context).mean(-1, keepdims=True) + config.norm_eps) * weights["w_norm"]
        return np.einsum("bthv,hvd->btd", unit / (1 + np.exp(-gate)), weights["w_o"])

    want = bounded(config, x, weights)["y"]
    for context in contexts:
        assert ratio(outputs(context), ErrArray(want.v, 2 * want.b)) <= 1


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_start_with_long_and_short_memories(heads: int) -> None:
    """A rate from 1 to 16, head by head, and a step of 0.01 in every channel."""
    found = Config(d_model=14, num_heads=heads).initial_values()
    rates = np.exp(np.broadcast_to(np.array(found["a_log"]), heads))
    step = log(1 + exp(float(found["dt_bias"])))  # type: ignore[arg-type]
    # Four functions, each within a few roundings, of arguments that are at most 5, and a sum with 1.
    for got, want in ((rates[0], 4.0 if heads == 1 else 1.0), (rates[-1], 4.0 if heads == 1 else 16.0)):
        assert abs(got - want) <= want * 4 * 5 * 4 * np.finfo(float).eps
    assert abs(step - 0.01) <= 4 * 5 * 4 * np.finfo(float).eps
