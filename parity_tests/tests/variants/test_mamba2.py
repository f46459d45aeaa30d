"""Mamba-2 against scalar loops, its forms against each other, and the recurrence that it is made of."""

from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest

from attn_np.contract.mamba2 import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.variants.test_kda import mixed, projected, swish
from parity_tests.tests.witness import bounded, layer_of, ratio, weights_of

FORMS = Config(d_model=5, num_heads=4, num_key_heads=2, state_dim=3, head_dim=7, chunk_size=3, norm_groups=2)
MIXED = replace(FORMS, conv_size=4)


# Scalar loops: S_t = e^(-step rate) S_{t-1} + step k v^T, one entry at a time -----------------------------------------


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence."""
    heads, per_group = config.num_heads, config.num_heads // config.norm_groups
    gated = [[[0.0] * config.head_dim for _ in range(heads)] for _ in x]
    for h in range(heads):
        key_head = h * config.num_key_heads // heads
        at = {"q": key_head, "k": key_head, "v": h}
        parts = {name: [projected(row, w[f"w_{name}"], at[name]) for row in x] for name in "qkv"}
        if config.conv_size is not None:
            taps = {name: [tap[at[name]] for tap in w[f"w_{name}_conv"]] for name in "qkv"}
            parts = {name: mixed(rows, taps[name]) for name, rows in parts.items()}
            if config.conv_bias:
                shifts = {name: w[f"b_{name}_conv"][at[name]] for name in "qkv"}
                parts = {
                    name: [[a + b for a, b in zip(row, shifts[name], strict=True)] for row in rows]
                    for name, rows in parts.items()
                }
        state = [[0.0] * config.head_dim for _ in range(config.state_dim)]
        for t, row in enumerate(x):
            q, k, v = ([swish(a) for a in parts[name][t]] for name in "qkv")
            step = log(1 + exp(sum(a * line[h] for a, line in zip(row, w["w_dt"], strict=True)) + w["dt_bias"][h]))
            keeps = exp(-step * exp(w["a_log"][h]))
            state = [[keeps * old + step * k[i] * v[c] for c, old in enumerate(line)] for i, line in enumerate(state)]
            gates = projected(row, w["w_gate"], h)
            for c, gate in enumerate(gates):
                read = sum(q[i] * line[c] for i, line in enumerate(state)) + w["skip"][h] * v[c]
                gated[t][h][c] = read * swish(gate)
    y = [[0.0] * len(w["w_o"][0][0]) for _ in x]
    for t, row in enumerate(gated):
        for h, word in enumerate(row):
            size, weight = 1.0, [1.0] * config.head_dim
            if config.use_norm:
                first = h // per_group * per_group
                group = [a for other in row[first : first + per_group] for a in other]
                size, weight = sqrt(sum(a * a for a in group) / len(group) + config.norm_eps), w["w_norm"][h]
            for c, a in enumerate(word):
                for d, out in enumerate(w["w_o"][h][c]):
                    y[t][d] += a / size * weight[c] * out
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# The recurrence that it is made of ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_between_gate_and_convolution_it_is_the_gated_recurrence(name: str) -> None:
    """A gate whose SiLU is 1 is not to be had; so what `recur` gives is gated and projected by hand."""
    tree, config = TREES[name], replace(FORMS, use_norm=False)
    weights, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 5))
    q, k, v, gate = (np.einsum("btd,dhk->bthk", x, weights[f"w_{part}"]) for part in ("q", "k", "v", "gate"))
    q, k, v, gate = (a / (1 + np.exp(-a)) for a in (q, k, v, gate))
    step = np.log1p(np.exp(x @ weights["w_dt"] + weights["dt_bias"]))
    arrays = {"q": np.repeat(q, 2, 2), "k": np.repeat(k, 2, 2), "v": v, "beta": step}
    arrays |= {"decay": np.exp(-np.exp(weights["a_log"]) * step)}
    context = tree.numpy(tree.package.recur(**tree.arrays(arrays), rule="gated", scale=1.0)[0])
    context = (context + weights["skip"][:, None] * v) * gate
    y = np.einsum("bthv,hvo->bto", context, weights["w_o"])
    want = bounded(config, {"query": x}, weights)["y"]
    for got in (y, tree(layer_of(tree, config, weights), {"query": x})[0]):
        assert ratio(got, ErrArray(want.v, 2 * want.b)) <= 1
