"""The gated delta rule against scalar loops, its forms against each other, and the rules that it contains."""

from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import delta
from attn_np.contract.gated_delta import Config
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, layer_of, ratio, torch_gradients, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, chunk_size=3)
MIXED = replace(FORMS, conv_size=4)


# Scalar loops: S_t = S_{t-1} alpha (I - beta k k^T) + beta v k^T, one entry at a time ---------------------------------


def projected(x: list[float], w: Any, h: int) -> list[float]:
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) for e in range(len(w[0][h]))]


def gate(x: list[float], w: Any, h: int) -> float:
    return sum(a * w[d][h] for d, a in enumerate(x))


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


def stepped(state: Any, k: list[float], v: list[float], alpha: float, beta: float) -> list[list[float]]:
    """The state as the paper has it, values by keys: times alpha (I - beta k k^T), plus beta v k^T."""
    width = range(len(k))
    keeps = [[alpha * ((i == j) - beta * k[i] * k[j]) for j in width] for i in width]
    return [
        [sum(row[i] * keeps[i][j] for i in width) + beta * v[r] * k[j] for j in width] for r, row in enumerate(state)
    ]


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
        state = [[0.0] * len(w["w_k"][0][0]) for _ in w["w_v"][0][h]]
        for t, row in enumerate(x):
            q, k = (unit(config, parts[name][t]) for name in "qk")
            v, g = ([swish(a) for a in row] for row in (parts["v"][t], projected(row, w["w_gate"], h)))
            beta = 1 / (1 + exp(-gate(row, w["w_beta"], h)))
            alpha = exp(-exp(w["a_log"][h]) * log(1 + exp(gate(row, w["w_a"], h) + w["dt_bias"][h])))
            state = stepped(state, k, v, alpha, beta)
            o = [sum(a * b for a, b in zip(line, q, strict=True)) / sqrt(len(q)) for line in state]
            size = sqrt(sum(a * a for a in o) / len(o) + config.norm_eps)
            for c, a in enumerate(o):
                for d in range(len(w["w_o"][0][0])):
                    y[t][d] += a / size * w["w_norm"][c] * g[c] * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# The rules that it contains -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_without_fading_it_is_the_delta_rule(tree: Tree, form: str) -> None:
    """alpha = 1 to the bit where exp(a_log) is 0: the context is that of delta with these values, over sqrt(K)."""
    config = replace(FORMS, form=form)
    weights, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 5))
    layer = layer_of(tree, config, weights | {"a_log": np.full(2, -1000.0)})
    tape = tree.trace(layer, {"query": x})[1]
    # The values go in beside the inputs, which alone make queries, keys and beta.
    both = np.concatenate([x, tape["v_silu"].reshape(2, 7, 14)], -1)
    given = {n: np.concatenate([weights[n], np.zeros((14, *weights[n].shape[1:]))]) for n in ("w_q", "w_k", "w_beta")}
    given |= {"w_v": np.eye(19, 14, -5).reshape(19, 2, 7), "w_o": np.eye(14, 19).reshape(2, 7, 19)}
    plain = delta.Config(d_model=19, num_heads=2, head_dim=3, value_head_dim=7, form=form, use_norm=False, chunk_size=3)
    want = bounded(plain, {"query": both}, given)["y"]
    assert ratio(tape["context"].reshape(2, 7, 14) * sqrt(3), 2.0 * want[..., :14] * 0.5) <= 1


def test_a_state_that_fades_at_once_knows_its_own_key_only(tree: Tree) -> None:
    """alpha = 0 to the bit: every position stands alone."""
    config = replace(FORMS, form="chunked")
    weights = weights_of(config) | {"a_log": np.full(2, 10.0), "dt_bias": np.full(2, 50.0)}
    layer, x = layer_of(tree, config, weights), np.random.default_rng(1).normal(size=(1, 7, 5))
    (y,) = tree(layer, {"query": x})
    alone = bounded(config, {"query": x.reshape(7, 1, 5)}, weights)["y"]
    assert ratio(y.reshape(7, 1, 5), alone) <= 1
    assert all(np.isfinite(g).all() for g in tree.gradients(layer, {"query": x}, np.ones(y.shape)).values())


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def test_torch_autograd_of_the_recurrence() -> None:
    """The paper's recurrence as a loop over matrices; gradients by PyTorch's autograd."""
    weights, x = weights_of(FORMS), np.random.default_rng(1).normal(size=(2, 7, 5))
    leaves = {"query": torch.from_numpy(x).requires_grad_()}
    leaves |= {name: torch.from_numpy(p).requires_grad_() for name, p in weights.items()}
    q, k, v, g = (torch.einsum("btd,dhk->bthk", leaves["query"], leaves[f"w_{p}"]) for p in ("q", "k", "v", "gate"))
    q, k, v = (torch.nn.functional.silu(z) for z in (q, k, v))
    q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + FORMS.norm_eps) for z in (q, k))
    beta, a = (torch.einsum("btd,dh->bth", leaves["query"], leaves[name]) for name in ("w_beta", "w_a"))
    beta = torch.sigmoid(beta)[..., None, None]
    alpha = torch.exp(-torch.exp(leaves["a_log"]) * torch.nn.functional.softplus(a + leaves["dt_bias"]))[
        ..., None, None
    ]
    state, found = torch.zeros(2, 2, 7, 3, dtype=torch.float64), []
    for t in range(7):
        key, value = k[:, t, :, None], v[:, t, ..., None]
        state = alpha[:, t] * (state - beta[:, t] * (state @ key.mT) @ key) + beta[:, t] * value @ key
        found.append((state @ q[:, t, ..., None])[..., 0] / sqrt(3))
    context = torch.nn.functional.rms_norm(torch.stack(found, 1), (7,), leaves["w_norm"], FORMS.norm_eps)
    y = torch.einsum("bthv,hvd->btd", context * torch.nn.functional.silu(g), leaves["w_o"])
    want = bounded(FORMS, {"query": x}, weights)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# Where training starts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 7])
def test_heads_start_with_long_and_short_memories(heads: int) -> None:
    """What is left of a state after a position that says nothing: from e^(-1/1000) to e^(-1.6), head by head."""
    found = Config(d_model=14, num_heads=heads).initial_values()
    a_log, dt_bias = (np.broadcast_to(np.array(found[name]), heads) for name in ("a_log", "dt_bias"))
    fades = -np.exp(a_log) * np.log1p(np.exp(dt_bias))
    assert (np.diff(fades) < 0).all()
    ends = (-0.001, -1.6) if heads > 1 else (-0.04, -0.04)
    # Five functions, each within a few roundings, of arguments that are at most 7.
    for got, want in zip((fades[0], fades[-1]), ends, strict=True):
        assert abs(got - want) <= abs(want) * 5 * 7 * 4 * np.finfo(float).eps


def test_shapes_of_any_size_are_told_at_once() -> None:
    """Those that a file states are compared with its arrays before anything is made of them: no list of so many."""
    assert Config(d_model=5, num_heads=2**50, head_dim=3).shapes()["a_log"] == (2**50,)


def test_torch_convolution() -> None:
    """Every number of q, k and v by a filter of its own, as a padded convolution in groups; gradients by autograd."""
    weights, x = weights_of(MIXED), torch.from_numpy(np.random.default_rng(1).normal(size=(2, 7, 5))).requires_grad_()
    plain = replace(MIXED, conv_size=None)
    want = bounded(MIXED, {"query": x.detach().numpy()}, weights)
    leaves = {name: torch.from_numpy(p).requires_grad_() for name, p in weights.items()}
    parts = {}
    for name in "qkv":
        rows = torch.einsum("btd,dhk->bhkt", x, leaves[f"w_{name}"]).flatten(1, 2)
        taps = leaves[f"w_{name}_conv"].flatten(1).T[:, None]
        found = torch.nn.functional.conv1d(rows, taps, padding=3, groups=rows.shape[1])[..., :7]
        parts[name] = found.unflatten(1, (2, -1)).permute(0, 3, 1, 2)
    q, k = (torch.nn.functional.silu(parts[name]) for name in "qk")
    q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + plain.norm_eps) for z in (q, k))
    v, state, read = torch.nn.functional.silu(parts["v"]), torch.zeros(2, 2, 3, 7, dtype=torch.float64), []
    beta = torch.sigmoid(torch.einsum("btd,dh->bth", x, leaves["w_beta"]))
    step = torch.nn.functional.softplus(torch.einsum("btd,dh->bth", x, leaves["w_a"]) + leaves["dt_bias"])
    alpha = torch.exp(-torch.exp(leaves["a_log"]) * step)
    for n in range(7):
        state = alpha[:, n, :, None, None] * state
        known = torch.einsum("bhkv,bhk->bhv", state, k[:, n])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, n], beta[:, n, :, None] * (v[:, n] - known))
        read.append(torch.einsum("bhk,bhkv->bhv", q[:, n] / sqrt(3), state))
    normed = torch.nn.functional.rms_norm(torch.stack(read, 1), (7,), leaves["w_norm"], plain.norm_eps)
    gate = torch.nn.functional.silu(torch.einsum("btd,dhv->bthv", x, leaves["w_gate"]))
    y = torch.einsum("bthv,hvd->btd", gate * normed, leaves["w_o"])
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=x, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


def test_a_convolution_of_the_own_position_changes_nothing(tree: Tree) -> None:
    """Weights of 1 for the own position and of 0 for those before it."""
    weights = weights_of(FORMS)
    own, widths = np.array([0.0, 0.0, 0.0, 1.0])[:, None, None], {"q": 3, "k": 3, "v": 7}
    taps = {f"w_{name}_conv": own * np.ones((4, 2, width)) for name, width in widths.items()}
    x = {"query": np.random.default_rng(2).normal(size=(2, 5, 5))}
    traces = [tree.trace(layer_of(tree, c, weights | more), x)[1] for c, more in ((FORMS, {}), (MIXED, taps))]
    plain, mixed = ({name: np.asarray(trace[name]) for name in "qkv"} for trace in traces)
    assert all(np.array_equal(plain[name], mixed[name]) for name in plain)
