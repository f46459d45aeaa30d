"""Contextual positions against scalar loops, the paper's listing in PyTorch, and attention with other positions."""

from dataclasses import replace
from math import exp, floor, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from attn_np.contract import mha, shaw
from attn_np.contract.cope import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    ratio,
    stacked,
    torch_gradients,
    weights_of,
)

# Scalar loops, from section 4 of the paper ----------------------------------------------------------------------------


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def between(rows: list[list[float]], position: float) -> list[float]:
    """The embedding of a position that need not be whole: e[p] between those of its two neighbours."""
    low = floor(position)
    part = position - low
    return [(1 - part) * a + part * b for a, b in zip(rows[low], rows[min(low + 1, len(rows) - 1)], strict=True)]


def loops(config: Config, w: Any, words: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """One batch row: its output, and the weights of every head."""

    def part(name: str, h: int) -> list[list[float]]:
        columns = [line[h] for line in w[f"w_{name}"]]
        shift = w[f"b_{name}"][h] if f"b_{name}" in w else [0.0] * len(columns[0])
        return [[dot(word, [line[c] for line in columns]) + shift[c] for c in range(len(shift))] for word in words]

    d = len(w["w_o"][0][0])
    y, weights = [list(w.get("b_o", [0.0] * d)) for _ in words], []
    for h, w_o in enumerate(w["w_o"]):
        q, k, v = (part(name, h) for name in "qkv")
        counted = {"keys": k, "values": v}.get(config.gate_with) or part("gate_k", h)
        scale = 1 / sqrt(len(q[0])) if config.scale is None else config.scale
        weights.append([])
        for i in range(len(words)):
            seen = [j for j in range(i + 1) if mask[h][i][j]]
            raised, position = {}, 0.0
            for j in reversed(seen):
                position += 1 / (1 + exp(-scale * dot(q[i], counted[j])))
                added = dot(q[i], between(w["w_pos"], min(position, config.num_positions - 1)))
                added *= scale if config.scale_positions else 1.0
                raised[j] = exp(scale * dot(q[i], k[j]) + added + bias[h][i][j])
            alpha = [raised.get(j, 0.0) / sum(raised.values()) if raised else 0.0 for j in range(len(words))]
            weights[h].append(alpha)
            used = [a / (1 - config.dropout) if kept else 0.0 for a, kept in zip(alpha, keep[h][i], strict=True)]
            for c, line in enumerate(w_o):
                found = sum(a * word[c] for a, word in zip(used, v, strict=True))
                y[i] = [total + found * x for total, x in zip(y[i], line, strict=True)]
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# The paper's listing, in PyTorch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_positions", [False, True])
@pytest.mark.parametrize("rows", [3, 12])
def test_the_paper_s_listing(rows: int, scale_positions: bool) -> None:
    """Sums of flipped gates, clamped, and entries of a product at their floors and ceilings; gradients by autograd."""
    config, t = Config(d_model=6, num_heads=2, num_positions=rows, scale_positions=scale_positions), 9
    w, x = weights_of(config), np.random.default_rng(0).normal(size=(2, t, 6))
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    given = torch.from_numpy(x).requires_grad_()

    def heads(name: str) -> torch.Tensor:
        flat = linear(given, p[f"w_{name}"].flatten(1).T, p[f"b_{name}"].flatten())
        return flat.unflatten(-1, (2, -1)).transpose(1, 2)

    q = heads("q")
    hidden = torch.ones(t, t).triu(1).bool()
    scores = (q @ heads("k").transpose(-1, -2) / sqrt(3)).masked_fill(hidden, -torch.inf)
    positions = torch.sigmoid(scores).flip(-1).cumsum(-1).flip(-1).clamp(max=rows - 1)
    products = q @ p["w_pos"].T
    part = positions - positions.floor()
    above, below = (products.gather(-1, side.long()) for side in (positions.ceil(), positions.floor()))
    added = above * part + below * (1 - part)
    weights = torch.softmax(scores + (added / sqrt(3) if scale_positions else added), dim=-1)
    y = linear((weights @ heads("v")).transpose(1, 2).flatten(2), p["w_o"].flatten(0, 1).T, p["b_o"])
    want = bounded(config, {"query": x}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights.detach(), want["out1"]) <= 1
    for name, grad in torch_gradients(y, query=given, **p).items():
        assert ratio(grad, want[name]) <= 1, name


# Identities -----------------------------------------------------------------------------------------------------------


def some(config: Config, t: int = 7) -> Arrays:
    rng = np.random.default_rng(t)
    inputs = {"query": rng.normal(size=(2, t, config.d_model)), "bias": rng.normal(size=(2, 1, 1, t))}
    shape = (2, config.num_heads, t, t)
    return inputs | {"mask": rng.random(shape) < 0.7, "keep": rng.random(shape) < 0.5}


def everything(tree: Tree, config: Config, inputs: Arrays, w: Arrays) -> Arrays:
    """Output, weights and gradients of a tree's layer."""
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    return {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))


def around(want: ErrArray, limits: ErrArray) -> ErrArray:
    """A value of one formula, with the bounds of both."""
    return ErrArray(want.v, want.b + limits.b)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_with_rows_alike_it_is_causal_multi_head_attention(tree: Tree, value: float) -> None:
    """Each key of a query gets the same number: outputs and gradients of `mha`, with a mask, a bias and dropout."""
    fields = {"d_model": 6, "num_heads": 3, "head_dim": 5, "value_head_dim": 2, "dropout": 0.5}
    config = Config(**fields, num_positions=4)
    w, inputs = weights_of(config), some(config)
    w["w_pos"] = np.broadcast_to(value * w["w_pos"][:1], w["w_pos"].shape).copy()
    rest = {name: x for name, x in w.items() if name != "w_pos"}
    want, limits = bounded(mha.Config(**fields, causal=True), inputs, rest), bounded(config, inputs, w)
    got = everything(tree, config, inputs, w)
    for name, array in want.items():
        if name != "db_k":  # it is 0, and what comes out is rounding
            assert ratio(got[name], around(array, limits[name])) <= 1, name


@pytest.mark.parametrize("rows", [4, 11])
def test_gates_of_one_are_distances(tree: Tree, rows: int) -> None:
    """Every key counts: `shaw`, whose row for distance n is that of position n + 1, and 0 is the position of no key."""
    fields = {"d_model": 6, "num_heads": 2, "head_dim": 5, "value_head_dim": 3, "output_dim": 7, "dropout": 0.5}
    config = Config(**fields, num_positions=rows, gate_with="own_keys", scale_positions=True)
    w, inputs = weights_of(config), some(config)
    del inputs["mask"]  # a hidden key does not count, and distances count it
    # The first entry of a query is 1 and that of each key of the gates large: e^-800 is 0, and 1 / (1 + 0) is 1.
    w["w_q"][..., 0], w["b_q"][..., 0] = 0.0, 1.0
    w["w_gate_k"][...], w["b_gate_k"][...] = 0.0, 0.0
    w["b_gate_k"][..., 0] = 800.0 * sqrt(5)
    limit = rows - 2
    other = shaw.Config(**fields, causal=True, max_distance=limit, use_values=False)
    rest = {name: x for name, x in w.items() if name not in ("w_pos", "w_gate_k", "b_gate_k")}
    ahead = np.zeros((limit, 5))
    rest["w_rel_k"] = np.concatenate([w["w_pos"][:0:-1], ahead])
    want, limits = bounded(other, inputs, rest), bounded(config, inputs, w)
    got = everything(tree, config, inputs, w)
    for name in ("dw_gate_k", "db_gate_k"):
        assert not got[name].any(), name
    table = want.pop("dw_rel_k")
    assert not got["dw_pos"][0].any()
    assert ratio(got["dw_pos"][:0:-1], around(table[: limit + 1], limits["dw_pos"][:0:-1])) <= 1
    for name, array in want.items():
        if name != "db_k":
            assert ratio(got[name], around(array, limits[name])) <= 1, name


@pytest.mark.parametrize("gates", ["keys", "values"])
def test_keys_of_the_gates_that_are_others_too(tree: Tree, gates: str) -> None:
    """Own keys with the weights of keys or of values: the same, and these weights' gradients are sums of both."""
    name = gates[0]
    config = Config(d_model=6, num_heads=2, head_dim=5, num_positions=4, gate_with=gates)
    own = replace(config, gate_with="own_keys")
    w, inputs = weights_of(config), some(config)
    twice = w | {"w_gate_k": w[f"w_{name}"], "b_gate_k": w[f"b_{name}"]}
    want, got = bounded(own, inputs, twice), everything(tree, config, inputs, w)
    for weight in ("w", "b"):
        apart = want.pop(f"d{weight}_gate_k")
        want[f"d{weight}_{name}"] = want[f"d{weight}_{name}"] + apart
    for array, limit in want.items():
        assert ratio(got[array], limit) <= 1, array


def test_a_bias_that_hides_a_key_closes_its_gate(tree: Tree) -> None:
    """-inf in the bias is False in the mask: a key that has no weight moves no position."""
    config = Config(d_model=6, num_heads=2, num_positions=6)
    w, inputs = weights_of(config), some(config)
    want = bounded(config, {"query": inputs["query"], "mask": inputs["mask"]}, w)
    by_bias = {"query": inputs["query"], "bias": np.where(inputs["mask"], 0.0, -np.inf)}
    got = everything(tree, config, by_bias, w)
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_positions_stay_within_the_table(tree: Tree) -> None:
    """Many more keys than rows: finite, and clipped at the last row, which far keys share."""
    config = Config(d_model=4, num_heads=1, num_positions=3, use_bias=False)
    w, x = weights_of(config), {"query": np.random.default_rng(0).normal(size=(1, 29, 4))}
    _, tape = tree.trace(layer_of(tree, config, w), x)
    assert tape["positions"].max() == 2.0 < tape["gate_sums"].max()
    first, last = tape["position_scores"][0, 0, -1, 0], tape["position_products"][0, 0, -1, -1]
    assert first == last


# Fields ---------------------------------------------------------------------------------------------------------------


def test_gates_have_keys_of_their_own_only_where_asked(tree: Tree) -> None:
    found = {
        gates: set(tree.package.build("cope", d_model=6, num_heads=2, gate_with=gates).params())
        for gates in ("keys", "own_keys", "values")
    }
    assert found["own_keys"] - found["keys"] == {"w_gate_k", "b_gate_k"}
    assert found["values"] == found["keys"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_positions": 0}, "expected num_positions to be an integer of at least 1, got 0; set num_positions="),
        ({"gate_with": "queries"}, "expected gate_with to be one of"),
        (
            {"gate_with": "values", "value_head_dim": 5},
            "expected keys and values of one width with gate_with='values', got 3 and 5; leave value_head_dim out",
        ),
    ],
)
def test_fields_that_cannot_be_right_are_refused(tree: Tree, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tree.package.build("cope", d_model=6, num_heads=2, **fields)


def test_gates_that_are_nan_are_seen(tree: Tree) -> None:
    """Every query has at least its own gate, so no output hides them."""
    layer = tree.package.build("cope", d_model=6, num_heads=2, gate_with="own_keys", num_positions=3)
    params = {name: tree.numpy(x) for name, x in layer.params().items()}
    params["w_gate_k"] = np.full_like(params["w_gate_k"], np.nan)
    layer.set_params({name: tree.array(x) for name, x in params.items()})
    with np.errstate(invalid="ignore"):
        y = layer(tree.array(np.ones((2, 5, 6), np.float32)))
    assert np.isnan(tree.numpy(y)).all()
