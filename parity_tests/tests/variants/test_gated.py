"""Gated attention against scalar loops, multi-head attention, and PyTorch's own modules put together."""

from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np.contract import mha
from attn_np.contract.gated import Config
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.variants.test_mha import head, projected, within
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

GATES = ("element", "head")


@pytest.fixture(params=["numpy", "torch"])
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


# Scalar loops, from equation 5 of the paper ---------------------------------------------------------------------------


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, *given: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row: Y' = Y sigma(X W), head by head, then the output projection."""
    gated, weights = [[] for _ in query], []
    for h in range(config.num_heads):

        def part(name: str, words: Any, h: int = h) -> list[list[float]]:
            shift = w[f"b_{name}"][h] if config.use_bias else None
            return [projected(word, [row[h] for row in w[f"w_{name}"]], shift) for word in words]

        found, own = head(config, part("q", query), part("k", key), part("v", value), *(x[h] for x in given))
        for i, theta in enumerate(part("gate", query)):
            for c, x in enumerate(found[i]):
                gated[i].append(x / (1 + exp(-theta[c if config.gate == "element" else 0])))
        weights.append(own)
    w_o = [row for own in w["w_o"] for row in own]
    return [projected(x, w_o, w.get("b_o")) for x in gated], weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


def cross(gate: str) -> tuple[Config, Arrays, Arrays]:
    """Three heads over keys and values of other widths and another length; one query sees nothing in one head."""
    config = Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=11, key_dim=13, value_dim=2, gate=gate)
    mask = np.random.default_rng(1).random((2, 3, 4, 6)) < 0.6
    mask[1, 2, 3] = False
    inputs = {"query": normal(2, 4, 7), "key": normal(2, 6, 13), "value": normal(2, 6, 2), "mask": mask}
    return config, weights_of(config), inputs


def ungated(config: Config) -> mha.Config:
    return mha.Config(**{name: getattr(config, name) for name in mha.Config.fields() if hasattr(config, name)})


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("shift", "share"), [(1000.0, 1.0), (0.0, 0.5)], ids=["open", "half"])
def test_gates_that_do_not_depend_on_the_query(tree: Tree, gate: str, shift: float, share: float) -> None:
    """Wide open they are not there; without weights and biases they let half of everything through."""
    config, w, inputs = cross(gate)
    w |= {"w_gate": np.zeros_like(w["w_gate"]), "b_gate": np.full_like(w["b_gate"], shift)}
    own = {name: p for name, p in w.items() if not name.endswith("_gate")}
    want = bounded(ungated(config), inputs, own | {"w_o": share * w["w_o"]})
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name in ("y", "out1", "dkey", "dvalue", "dw_v", "dw_k", "db_o"):
        assert within(name, got[name], want[name]), name
    if shift == 0.0:
        return
    # At 1 the sigmoid is flat: the gates get no gradient and add none to that of the query.
    assert within("dquery", got["dquery"], want["dquery"])
    assert not got["dw_gate"].any()


@pytest.mark.parametrize("gate", GATES)
def test_shut_gates_leave_the_bias_of_the_outputs(tree: Tree, gate: str) -> None:
    config, w, inputs = cross(gate)
    w |= {"w_gate": np.zeros_like(w["w_gate"]), "b_gate": np.full_like(w["b_gate"], -1000.0)}
    y, _ = tree(layer_of(tree, config, w), inputs, return_weights=True)
    assert np.array_equal(y, np.broadcast_to(w["b_o"], y.shape))


def test_one_gate_for_a_head_is_the_same_gate_on_every_number(tree: Tree) -> None:
    """Outputs and gradients; the gradient of the one gate is the sum over all that it stands for."""
    config, w, inputs = cross("head")
    wide = replace(config, gate="element")
    want = bounded(wide, inputs, w | {name: np.repeat(w[name], 11, axis=-1) for name in ("w_gate", "b_gate")})
    for name in ("dw_gate", "db_gate"):
        want[name] = np.sum(want[name], axis=-1, keepdims=True)
    layer = layer_of(tree, config, w)
    (y,) = tree(layer, inputs)
    assert ratio(y, want["y"]) <= 1
    for name, x in tree.gradients(layer, inputs, cotangent(y.shape)).items():
        assert within(name, x, want[name]), name


# PyTorch's own function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", GATES)
def test_torch_scaled_dot_product_attention_with_a_gate_behind_it(gate: str) -> None:
    config, w, inputs = cross(gate)
    mask = torch.from_numpy(inputs["mask"])
    mask[1, 2, 3, 0] = True
    given = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items() if n != "mask"}
    held = {n: torch.from_numpy(p).requires_grad_() for n, p in w.items()}
    q, k, v, theta = (
        torch.einsum("btd,dhk->bhtk", given[word], held[f"w_{n}"]) + held[f"b_{n}"][:, None]
        for n, word in (("q", "query"), ("k", "key"), ("v", "value"), ("gate", "query"))
    )
    found = scaled_dot_product_attention(q, k, v, mask) * torch.sigmoid(theta)
    y = torch.einsum("bhtv,hvd->btd", found, held["w_o"]) + held["b_o"]
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **given, **held).items():
        assert within(name, grad, want[name]), name


# Fields ---------------------------------------------------------------------------------------------------------------


def test_shapes_of_the_gates() -> None:
    shapes = {gate: cross(gate)[0].shapes() for gate in GATES}
    assert {gate: (found["w_gate"], found["b_gate"]) for gate, found in shapes.items()} == {
        "element": ((7, 3, 11), (3, 11)),
        "head": ((7, 3, 1), (3, 1)),
    }


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        Config(d_model=6, num_heads=2, gate="layer")
    assert str(caught.value) == "gated: expected gate to be one of element, head, got 'layer'; set gate="
