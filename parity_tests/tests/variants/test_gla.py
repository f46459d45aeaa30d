"""Gated linear attention against scalar loops, its forms against each other, and retention, whose decays are fixed."""

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from attn_np.contract import retention
from attn_np.contract.gla import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.witness import bounded, layer_of, ratio, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, rank=4, temperature=2.0, chunk_size=3)


# Scalar loops: S_t = diag(alpha_t) S_{t-1} + k_t v_t^T, one entry at a time -------------------------------------------


def projected(x: list[float], w: Any, h: int) -> list[float]:
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) for e in range(len(w[0][h]))]


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence."""
    y = [[0.0] * len(w["w_o"][0][0]) for _ in x]
    for h in range(config.num_heads):
        state = [[0.0] * len(w["w_v"][0][h]) for _ in w["w_k"][0][h]]
        for t, row in enumerate(x):
            q, k, v, g = (projected(row, w[f"w_{name}"], h) for name in ("q", "k", "v", "gate"))
            latent = [
                sum((a * line[z] for a, line in zip(row, w["w_a_down"], strict=True)), 0.0) for z in range(config.rank)
            ]
            gates = [a + b for a, b in zip(projected(latent, w["w_a_up"], h), w["b_a"][h], strict=True)]
            alpha = [(1 / (1 + exp(-a))) ** (1 / config.temperature) for a in gates]
            state = [[alpha[i] * s + k[i] * v[c] for c, s in enumerate(line)] for i, line in enumerate(state)]
            o = [sum(q[i] * line[c] for i, line in enumerate(state)) / sqrt(len(q)) for c in range(len(v))]
            size = sqrt(sum(a * a for a in o) / len(o) + config.norm_eps)
            for c, a in enumerate(o):
                gated = a / size * w["w_norm"][c] * g[c] / (1 + exp(-g[c]))
                for d in range(len(w["w_o"][0][0])):
                    y[t][d] += gated * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# The rule that it contains --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_with_decays_of_each_head_it_is_retention(name: str, form: str) -> None:
    """Gates that depend on no input, with the rates of retention: the same context."""
    tree, config = TREES[name], replace(FORMS, form=form, temperature=1.0)
    fixed = retention.Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, chunk_size=3, form=form, norm="rms")
    weights, x = weights_of(config), {"query": np.random.default_rng(1).normal(size=(2, 7, 5))}
    # sigmoid(b) = e^log, so b = log - log(1 - e^log)
    logs = np.array(fixed.log_decays())
    weights["b_a"] = np.repeat((logs - np.log1p(-np.exp(logs)))[:, None], 3, 1)
    weights["w_a_up"] = 0.0 * weights["w_a_up"]
    given = {key: weights[key] for key in fixed.shapes()}
    contexts = [tree.trace(layer_of(tree, c, w), x)[1]["context"] for c, w in ((config, weights), (fixed, given))]
    gate = np.einsum("btd,dhv->bthv", x["query"], weights["w_gate"])

    def outputs(context: np.ndarray) -> np.ndarray:
        unit = context / np.sqrt((context * context).mean(-1, keepdims=True) + config.norm_eps) * weights["w_norm"]
        return np.einsum("bthv,hvd->btd", unit * gate / (1 + np.exp(-gate)), weights["w_o"])

    want = bounded(config, x, weights)["y"]
    for context in contexts:
        assert ratio(outputs(context), ErrArray(want.v, 2 * want.b)) <= 1
