"""The delta rule against scalar loops, its forms against each other, and what it is known to do."""

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import numpy as np
import torch

from attn_np.contract.delta import Config
from parity_tests.tests.forms import scalar_rows
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, layer_of, ratio, torch_gradients, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, chunk_size=3)


# Scalar loops: S_t = S_{t-1} (I - beta k k^T) + beta v k^T, one entry at a time ---------------------------------------


def projected(x: list[float], w: Any, h: int) -> list[float]:
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) for e in range(len(w[0][h]))]


def unit(config: Config, x: list[float]) -> list[float]:
    x = [a / (1 + exp(-a)) for a in x]
    size = sqrt(sum(a * a for a in x) + config.norm_eps)
    return [a / size for a in x]


def stepped(state: list[list[float]], k: list[float], v: list[float], beta: float) -> list[list[float]]:
    """The state as the paper has it, values by keys: times I - beta k k^T, plus beta v k^T."""
    width = range(len(k))
    keeps = [[(i == j) - beta * k[i] * k[j] for j in width] for i in width]
    return [
        [sum(row[i] * keeps[i][j] for i in width) + beta * v[r] * k[j] for j in width] for r, row in enumerate(state)
    ]


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence."""
    y = [[0.0] * len(w["w_o"][0][0]) for _ in x]
    for h in range(config.num_heads):
        state = [[0.0] * len(w["w_k"][0][h]) for _ in w["w_v"][0][h]]
        for t, row in enumerate(x):
            q, k = (unit(config, projected(row, w[name], h)) for name in ("w_q", "w_k"))
            beta = 1 / (1 + exp(-sum(a * w["w_beta"][d][h] for d, a in enumerate(row))))
            state = stepped(state, k, projected(row, w["w_v"], h), beta)
            o = [sum(a * b for a, b in zip(line, q, strict=True)) for line in state]
            if config.use_norm:
                size = sqrt(sum(a * a for a in o) / len(o) + config.norm_eps)
                o = [a / size * b for a, b in zip(o, w["w_norm"], strict=True)]
            for c, a in enumerate(o):
                for d in range(len(w["w_o"][0][0])):
                    y[t][d] += a * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


# One result in three forms --------------------------------------------------------------------------------------------


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def test_torch_solve_triangular() -> None:
    """The pseudo-values of the whole sequence by PyTorch's triangular solver; gradients by its autograd."""
    config = replace(FORMS, use_norm=False, form="parallel")
    weights, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 5))
    leaves = {"query": torch.from_numpy(x).requires_grad_()}
    leaves |= {name: torch.from_numpy(p).requires_grad_() for name, p in weights.items()}
    q, k, v = (torch.einsum("btd,dhk->bhtk", leaves["query"], leaves[f"w_{p}"]) for p in "qkv")
    q, k = (torch.nn.functional.silu(z) for z in (q, k))
    q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + config.norm_eps) for z in (q, k))
    beta = torch.sigmoid(torch.einsum("btd,dh->bht", leaves["query"], leaves["w_beta"]))[..., None]
    system = torch.tril(beta * k @ k.mT, -1) + torch.eye(7, dtype=torch.float64)
    corrected = torch.linalg.solve_triangular(system, beta * v, upper=False, unitriangular=True)
    y = torch.einsum("bhtv,hvd->btd", torch.tril(q @ k.mT) @ corrected, leaves["w_o"])
    want = bounded(config, {"query": x}, weights)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# What it is known to do -----------------------------------------------------------------------------------------------


def test_a_value_written_again_replaces_the_old_one(tree: Tree) -> None:
    """The same key twice with a writing strength of 1: the state holds the second value alone."""
    config = Config(d_model=3, num_heads=1, head_dim=1, value_head_dim=1, form="recurrent", use_norm=False)
    one, other, third = (np.eye(3)[i][:, None, None] for i in range(3))
    weights = {"w_q": one, "w_k": 2.0**30 * one, "w_v": other, "w_beta": 2.0**10 * third[:, :, 0]}
    layer = layer_of(tree, config, weights | {"w_o": np.ones((1, 1, 3))})
    x = np.array([[[1.0, 5.0, 1.0], [1.0, 7.0, 1.0]]])
    states = tree.trace(layer, {"query": x})[1]["states"]
    assert np.all(np.abs(states.ravel() - [5.0, 7.0]) <= 32 * np.finfo(np.float64).eps * 7)
