"""Retention against scalar loops, its three forms against each other, and PyTorch's group norm."""

from dataclasses import replace
from math import cos, exp, sin, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from attn_np import contract
from attn_np.contract.retention import EXAMPLES, Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, layer_of, ratio, torch_gradients, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, exponent=1.0, use_bias=True)
TURNED = replace(FORMS, head_dim=6, rope_base=20.0)


# Scalar loops: o_n = sum over m <= n of gamma^(n-m) (q_n k_m) v_m, pair by pair --------------------------------------


def projected(x: list[float], w: Any, b: Any, h: int) -> list[float]:
    width = range(len(w[0][h]))
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) + (b[h][e] if b else 0.0) for e in width]


def normed(config: Config, heads: list[list[float]], weight: Any) -> list[list[float]]:
    """The contexts of all heads at one position."""
    if config.norm == "none":
        return heads
    groups = heads if config.norm_over == "head" else [[a for x in heads for a in x]] * len(heads)
    found = []
    for h, (x, group) in enumerate(zip(heads, groups, strict=True)):
        mean = sum(group) / len(group) if config.norm == "layer" else 0.0
        size = sqrt(sum((a - mean) ** 2 for a in group) / len(group) + config.norm_eps)
        found.append([(a - mean) / size * (weight[h][c] if weight else 1.0) for c, a in enumerate(x)])
    return found


def activated(config: Config, rows: list[list[float]]) -> list[list[float]]:
    return rows if config.activation is None else [[a / (1 + exp(-a)) for a in row] for row in rows]


def rate(config: Config, h: int) -> float:
    if config.decay is not None:
        return config.decay[h]
    if config.decay_rule == "alibi":
        return exp(-(2.0 ** (-8 * (h + 1) / config.num_heads)))
    return 1 - 2.0 ** (-config.exponent - h)


def turned(config: Config, x: list[float], n: int) -> list[float]:
    """x e^{i n theta}: pairs as complex numbers, each turned by its own angle."""
    if config.rope_base is None:
        return x
    pairs, found = len(x) // 2, list(x)
    for i in range(pairs):
        steps = (pairs - 1 if pairs > 1 else 1) if config.angle_spacing == "closed" else pairs
        angle = n / config.rope_base ** (i / steps)
        a, b = (2 * i, 2 * i + 1) if config.rope_layout == "interleaved" else (i, i + pairs)
        found[a], found[b] = x[a] * cos(angle) - x[b] * sin(angle), x[a] * sin(angle) + x[b] * cos(angle)
    return found


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence: no state anywhere, every query meets every key up to its own."""
    y = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in x]
    contexts: list[list[list[float]]] = [[] for _ in x]
    for h in range(config.num_heads):
        gamma = rate(config, h)
        q, k, v = (activated(config, [projected(row, w[f"w_{p}"], w.get(f"b_{p}"), h) for row in x]) for p in "qkv")
        q, k = ([turned(config, row, n) for n, row in enumerate(rows)] for rows in (q, k))
        scale = 1 / sqrt(len(q[0])) if config.scale is None else config.scale
        for n in range(len(x)):
            o = [0.0] * len(v[0])
            for m in range(n + 1):
                score = sum(a * b for a, b in zip(q[n], k[m], strict=True)) * scale * gamma ** (n - m)
                o = [a + score * b for a, b in zip(o, v[m], strict=True)]
            contexts[n].append(o)
    for n, row in enumerate(x):
        for h, head in enumerate(normed(config, contexts[n], w.get("w_norm"))):
            g = projected(row, w["w_gate"], w.get("b_gate"), h) if config.use_gate else []
            for c, a in enumerate(head):
                gate = (g[c] if config.gate_activation == "silu" else 1.0) / (1 + exp(-g[c])) if g else 1.0
                for d in range(len(w["w_o"][0][0])):
                    y[n][d] += gate * a * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def test_torch_group_norm() -> None:
    """The decay matrix by powers, the norm as one group for each head; gradients by PyTorch's autograd."""
    weights, x = weights_of(FORMS), np.random.default_rng(1).normal(size=(2, 7, 5))
    leaves = {"query": torch.from_numpy(x).requires_grad_()}
    leaves |= {name: torch.from_numpy(p).requires_grad_() for name, p in weights.items()}
    q, k, v, g = (
        torch.einsum("btd,dhk->bhtk", leaves["query"], leaves[f"w_{p}"]) + leaves[f"b_{p}"][:, None]
        for p in ("q", "k", "v", "gate")
    )
    gamma, places = 1 - 2.0 ** (-1.0 - torch.arange(2.0, dtype=torch.float64)), torch.arange(7)
    decay = torch.tril(gamma[:, None, None] ** (places[:, None] - places).clamp(min=0))
    context = (q @ k.mT * decay / sqrt(3)) @ v
    rows = context.permute(0, 2, 1, 3).reshape(14, 14)
    norm = torch.nn.functional.group_norm(rows, 2, eps=FORMS.norm_eps).reshape(2, 7, 2, 7).permute(0, 2, 1, 3)
    y = torch.einsum("bhtv,hvd->btd", torch.nn.functional.silu(g) * norm, leaves["w_o"]) + leaves["b_o"]
    want = bounded(FORMS, {"query": x}, weights)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


@pytest.mark.parametrize("spacing", ["closed", "open"])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_complex_numbers(layout: str, spacing: str) -> None:
    """Scores are real parts of q e^(i n theta) times the conjugate of k e^(i m theta), by PyTorch's complex numbers."""
    config = replace(TURNED, rope_layout=layout, angle_spacing=spacing)
    weights, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 5))
    angles = 20.0 ** -torch.linspace(0, 1, 3 if spacing == "closed" else 4, dtype=torch.float64)[:3]
    phases = torch.polar(torch.ones(7, 3, dtype=torch.float64), torch.arange(7)[:, None] * angles)
    q, k, v, g = (
        torch.einsum("btd,dhk->bhtk", torch.from_numpy(x), torch.from_numpy(weights[f"w_{p}"]))
        + torch.from_numpy(weights[f"b_{p}"])[:, None]
        for p in ("q", "k", "v", "gate")
    )
    axis = -1 if layout == "interleaved" else -2
    pair = (3, 2) if layout == "interleaved" else (2, 3)
    q, k = (torch.complex(*z.unflatten(-1, pair).unbind(axis)) * phases for z in (q, k))
    gamma, places = 1 - 2.0 ** (-1.0 - torch.arange(2.0, dtype=torch.float64)), torch.arange(7)
    decay = torch.tril(gamma[:, None, None] ** (places[:, None] - places).clamp(min=0))
    context = ((q @ k.mH).real * decay / sqrt(6)) @ v
    norm = torch.nn.functional.layer_norm(context, (7,), eps=config.norm_eps)
    gated = torch.nn.functional.silu(g) * norm
    y = torch.einsum("bhtv,hvd->btd", gated, torch.from_numpy(weights["w_o"])) + torch.from_numpy(weights["b_o"])
    assert ratio(y, bounded(config, {"query": x}, weights)["y"]) <= 1


@pytest.mark.peers
@pytest.mark.parametrize("layer", [0, 2])
def test_lightning_is_minimax(layer: int) -> None:
    """transformers' own module of one layer, whose state goes from block to block."""
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    config = minimax.MiniMaxConfig(
        hidden_size=6, num_attention_heads=3, head_dim=4, num_hidden_layers=4, block_size=2,
        layer_types=["linear_attention"] * 4,
    )  # fmt: skip
    theirs = minimax.MiniMaxLightningAttention(config, layer).double()
    theirs.query_decay, theirs.key_decay, theirs.diagonal_decay = theirs.decay_factors(theirs.slope_rate)
    theirs.norm = torch.nn.RMSNorm(12, eps=1e-6, dtype=torch.float64)  # their own computes in float32
    slopes = theirs.slope_rate.flatten().tolist()
    mine: Any = contract.config("lightning", d_model=6, num_heads=3, head_dim=4)
    factor = 1 - layer / (4 - 1 + 1e-5) + 1e-5
    for ours, slope in zip(mine.log_decays(), slopes, strict=True):
        assert abs(-ours * factor - slope) <= 8 * np.finfo(np.float32).eps * slope
    mine = replace(mine, decay_rule="retnet", decay=tuple(exp(-slope) for slope in slopes))
    q, k, v = theirs.qkv_proj.weight.detach().numpy().reshape(3, 3, 4, 6).transpose(1, 3, 0, 2)
    weights = {"w_q": q, "w_k": k, "w_v": v}
    with torch.no_grad():
        theirs.norm.weight.add_(torch.linspace(-0.5, 0.5, 12, dtype=torch.float64))
    weights["w_gate"] = theirs.output_gate.weight.detach().numpy().reshape(3, 4, 6).transpose(2, 0, 1)
    weights["w_norm"] = theirs.norm.weight.detach().numpy().reshape(3, 4)
    weights["w_o"] = theirs.out_proj.weight.detach().numpy().T.reshape(3, 4, 6)
    x = np.random.default_rng(1).normal(size=(2, 7, 6))
    got = theirs(torch.from_numpy(x), None, None)[0].detach()
    assert ratio(got, bounded(mine, {"query": x}, weights)["y"]) <= 1


# Numbers known beforehand ---------------------------------------------------------------------------------------------


def test_a_state_fades_by_its_heads_factor(tree: Tree) -> None:
    """One key at the first position, read at the third: it is there with gamma squared, by heads."""
    config = Config(d_model=2, num_heads=2, head_dim=1, value_head_dim=1, exponent=1.0, form="recurrent")
    eye = np.eye(2)[:, :, None]
    layer = layer_of(tree, config, {f"w_{p}": eye for p in ("q", "k", "v", "gate")} | {"w_o": np.moveaxis(eye, 0, -1)})
    x = np.array([[[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
    states = tree.trace(layer, {"query": x})[1]["states"]
    gamma = np.array([0.5, 0.75])
    want = gamma ** np.arange(3)[:, None]
    assert np.all(np.abs(states.reshape(3, 2) - want) <= 16 * np.finfo(np.float64).eps)


def test_a_huge_distance_leaves_nothing(tree: Tree) -> None:
    """The decay of later keys is selected away before its power could overflow."""
    config = replace(FORMS, exponent=0.001)
    layer, inputs = layer_of(tree, config, weights_of(config)), {"query": np.ones((1, 200, 5))}
    assert np.isfinite(tree(layer, inputs)[0]).all()
    assert all(np.isfinite(x).all() for x in tree.gradients(layer, inputs, np.ones((1, 200, 5))).values())


def test_angles_per_position() -> None:
    """As in the authors' code from 1 to 1 / rope_base, and as rotary positions have them."""
    closed = Config(d_model=6, num_heads=1, rope_base=64.0)
    assert closed.frequencies(7) == (1.0, 0.125, 0.015625)
    assert replace(closed, head_dim=4, angle_spacing="open").frequencies(7) == (1.0, 0.125)
    assert replace(closed, head_dim=2).frequencies(7) == (1.0,)


def test_only_pairs_turn(tree: Tree) -> None:
    with pytest.raises(ValueError, match="retention: expected an even head width with rope_base, got 3; set head_dim="):
        tree.package.build("retention", d_model=6, num_heads=2, rope_base=50.0)


@pytest.mark.parametrize("decay", [(0.5,), (0.5, 0.0), (0.5, 1.5), (0.5, True), 0.5, "ab"])
def test_a_decay_is_one_factor_for_each_head(decay: Any) -> None:
    with pytest.raises(ValueError, match="retention: expected decay to be 2 numbers above 0 and at most 1, got "):
        Config(d_model=6, num_heads=2, decay=decay)


def test_plain_retention_is_the_gated_recurrence(tree: Tree) -> None:
    """Without norm and gate, with decays of one's own: `recur` of the layer's queries, keys and values."""
    config = EXAMPLES["plain"]
    layer, x = layer_of(tree, config, weights_of(config)), {"query": np.random.default_rng(1).normal(size=(2, 7, 7))}
    tape = tree.trace(layer, x)[1]
    assert "gate_scores" not in tape
    parts = {name: tree.array(tape[name]) for name in "qkv"}
    y, _ = tree.package.recur(**parts, rule="gated", decay=tree.array(np.array(config.decay)), form="recurrent")
    want = bounded(config, x, weights_of(config))["y"]
    w = weights_of(config)
    found = np.einsum("bthv,hvd->btd", tree.numpy(y), w["w_o"]) + w["b_o"]
    assert ratio(found, ErrArray(want.v, 2 * want.b)) <= 1
