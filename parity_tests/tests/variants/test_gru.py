"""The gated recurrent unit against scalar loops, torch.nn.GRU with the same weights, and numbers known beforehand."""

from dataclasses import replace
from math import exp, tanh
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attn_jax
import attn_np
from attn_np.contract.gru import EXAMPLES, Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.witness import bounded, layer_of, ratio, weights_of

# Scalar loops from the equations --------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def step(w: Any, prefix: str, entry: list[float], h: list[float], reset_after: bool = True) -> list[float]:
    """The state after one position, from the weights whose names begin with a prefix."""
    w_x, w_h, width = w[f"{prefix}.w_x"], w[f"{prefix}.w_h"], range(len(h))
    b_x, b_h = (w.get(f"{prefix}.{name}", [[0.0] * len(h)] * 3) for name in ("b_x", "b_h"))
    a = [[b_x[f][e] + sum(v * w_x[f][d][e] for d, v in enumerate(entry)) for e in width] for f in range(3)]
    b = [[b_h[f][e] + sum(v * w_h[f][d][e] for d, v in enumerate(h)) for e in width] for f in range(3)]
    r = [sigmoid(a[0][e] + b[0][e]) for e in width]
    z = [sigmoid(a[1][e] + b[1][e]) for e in width]
    if reset_after:
        n = [tanh(a[2][e] + r[e] * b[2][e]) for e in width]
    else:
        n = [tanh(a[2][e] + sum(r[d] * v * w_h[2][d][e] for d, v in enumerate(h))) for e in width]
    return [(1 - z[e]) * n[e] + z[e] * h[e] for e in width]


def loops(config: Config, w: Any, x: Any, state: Any, keep: Any) -> tuple[Any, Any]:
    """Outputs and last states of one batch row, one number at a time."""
    last = []
    for i in range(config.num_layers):
        h, states = state[len(last)], []
        for entry in x:
            h = step(w, f"layers.{i}", entry, h, config.reset_after)
            states.append(h)
        last.append(h)
        if config.bidirectional:
            h = state[len(last)]
            for place in reversed(range(len(x))):
                h = step(w, f"backward_layers.{i}", x[place], h, config.reset_after)
                states[place] = states[place] + h
            last.append(h)
        x = states
        if i < config.num_layers - 1:
            x = [[v * k / (1 - config.dropout) for v, k in zip(*p, strict=True)] for p in zip(x, keep[i], strict=True)]
    return x, last


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the last state of every layer."""
    x = inputs["x"]
    b, t, _ = x.shape
    config = config if "keep" in inputs else replace(config, dropout=0.0)
    directions = 2 if config.bidirectional else 1
    state = inputs.get("state", np.zeros((config.num_layers * directions, b, config.hidden_dim)))
    keep = np.broadcast_to(inputs.get("keep", True), (config.num_layers - 1, b, t, config.hidden_dim * directions))
    w = {name: p.tolist() for name, p in params.items()}
    found = [loops(config, w, x[i].tolist(), state[:, i].tolist(), keep[:, i].tolist()) for i in range(b)]
    return {"y": np.array([y for y, _ in found]), "out1": np.stack([last for _, last in found], axis=1)}


# torch.nn.GRU ---------------------------------------------------------------------------------------------------------


def torch_gru(config: Config, weights: Arrays) -> torch.nn.GRU:
    """PyTorch's own layer with these weights: rows r z n one below the other, input side transposed."""
    gru = torch.nn.GRU(
        config.input_dim, config.hidden_dim, config.num_layers, bias=config.use_bias, batch_first=True,
        bidirectional=config.bidirectional,
    ).double()  # fmt: skip
    theirs = {}
    for name, value in weights.items():
        direction, i, kind = name.split(".")
        stacked = np.concatenate([gate.T for gate in value]) if kind.startswith("w") else value.reshape(-1)
        key = {"w_x": "weight_ih_l", "w_h": "weight_hh_l", "b_x": "bias_ih_l", "b_h": "bias_hh_l"}[kind] + i
        theirs[key + "_reverse" * (direction == "backward_layers")] = torch.from_numpy(stacked)
    gru.load_state_dict(theirs)
    return gru


def ours(config: Config, gru: torch.nn.GRU) -> Arrays:
    """The gradients that PyTorch's layer has gathered, in our shapes and names."""
    found = {}
    for name, value in gru.named_parameters():
        kind, i = name.removesuffix("_reverse").rsplit("_l", 1)
        layers = "backward_layers" if name.endswith("_reverse") else "layers"
        assert value.grad is not None
        grad = value.grad.numpy()
        mine = {"weight_ih": "w_x", "weight_hh": "w_h", "bias_ih": "b_x", "bias_hh": "b_h"}[kind]
        if mine.startswith("w"):
            grad = grad.reshape(3, config.hidden_dim, -1).transpose(0, 2, 1)
        found[f"d{layers}.{i}.{mine}"] = grad.reshape(weights_of(config)[f"{layers}.{i}.{mine}"].shape)
    return found


def bounded_both(config: Config, inputs: Arrays, weights: Arrays, dy: np.ndarray, dlast: np.ndarray) -> dict[str, Any]:
    """What the reference gives for gradients of both results, each number with its bound in float64."""
    layer = layer_of(TREES["numpy"], config, weights)
    layer.set_params({name: ErrArray(value, 0.0) for name, value in weights.items()})
    with precision(precision_of("float64")):
        tape: dict[str, Any] = {}
        y, last = layer(**{name: ErrArray(value, 0.0) for name, value in inputs.items()}, tape=tape)
        grads = layer.vjp(tape, ErrArray(dy, 0.0), ErrArray(dlast, 0.0))
    return {"y": y, "last": last} | {f"d{name}": g for name, g in (grads.inputs | grads.params).items()}


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("use_bias", "bidirectional"), [(True, False), (False, False), (True, True)])
def test_torch_gru(layers: int, use_bias: bool, bidirectional: bool) -> None:
    """Outputs, last states and every gradient, with an initial state, from gradients of outputs and last states."""
    config = Config(input_dim=3, hidden_dim=5, num_layers=layers, use_bias=use_bias, bidirectional=bidirectional)
    states = layers * (2 if bidirectional else 1)
    weights, inputs = weights_of(config), {"x": normal(2, 7, 3), "state": normal(states, 2, 5)}
    dy, dlast = normal(2, 7, config.sizes()["o"]), normal(states, 2, 5)
    gru = torch_gru(config, weights)
    x, state = (torch.from_numpy(value).requires_grad_() for value in inputs.values())
    y, last = gru(x, state)
    torch.autograd.backward([y, last], [torch.from_numpy(dy), torch.from_numpy(dlast)])
    assert x.grad is not None
    assert state.grad is not None
    got = {"y": y.detach(), "last": last.detach(), "dx": x.grad, "dstate": state.grad} | ours(config, gru)
    want = bounded_both(config, inputs, weights, dy, dlast)
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert ratio(value, want[name]) <= 1, name


def test_the_initial_state_is_zero_where_none_is_given(tree: Tree) -> None:
    config = EXAMPLES["single"]
    layer, x = layer_of(tree, config, weights_of(config)), normal(2, 7, config.input_dim)
    zero = np.zeros((1, 2, config.hidden_dim))
    for got, want in zip(tree(layer, {"x": x}), tree(layer, {"x": x, "state": zero}), strict=True):
        assert np.array_equal(got, want)


# Both results have gradients ------------------------------------------------------------------------------------------


def test_gradients_of_the_last_state(tree: Tree) -> None:
    """What the returned states are used for reaches every layer, in all three trees."""
    config = Config(input_dim=3, hidden_dim=5, num_layers=2)
    weights = weights_of(config)
    inputs: dict[str, Any] = {"x": normal(2, 3, 3), "state": normal(2, 2, 5)}
    dy, dlast = normal(2, 3, 5), normal(2, 2, 5)
    layer, want = layer_of(tree, config, weights), bounded_both(config, inputs, weights, dy, dlast)
    if tree.name == "numpy":
        _, pull = attn_np.value_and_vjp(layer, **inputs)
        grads = pull(dy, dlast)
        got = {f"d{name}": g for name, g in (grads.inputs | grads.params).items()}
    elif tree.name == "torch":
        leaves = {name: value.requires_grad_() for name, value in tree.arrays(inputs).items()}
        torch.autograd.backward(layer(**leaves), (torch.from_numpy(dy), torch.from_numpy(dlast)))
        got = {f"d{name}": leaf.grad.numpy() for name, leaf in (leaves | layer.params()).items()}
    else:

        def call(weights: Any, inputs: Any) -> Any:
            return layer_of(tree, config, weights)(**inputs)

        given = jax.tree.map(jnp.asarray, (weights, inputs))
        dweights, dinputs = jax.vjp(call, *given)[1]((jnp.asarray(dy), jnp.asarray(dlast)))
        got = {f"d{name}": np.asarray(g) for name, g in (dinputs | dweights).items()}
    for name, value in got.items():
        assert ratio(value, want[name]) <= 1, name
    assert got.keys() == want.keys() - {"y", "last"}


def test_a_layers_last_state_is_its_last_output() -> None:
    """So a gradient of the one is a gradient of the other: equal to the bit."""
    config = Config(input_dim=3, hidden_dim=5)
    layer, x = layer_of(TREES["numpy"], config, weights_of(config)), normal(2, 7, 3)
    (y, last), pull = attn_np.value_and_vjp(layer, x)
    assert np.array_equal(y[:, -1], last[0])
    dy, dlast = normal(2, 7, 5), normal(1, 2, 5)
    both = dy.copy()
    both[:, -1] += dlast[0]
    for name, want in pull(both).params.items():
        assert np.array_equal(pull(dy, dlast).params[name], want), name


# A sequence in pieces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_a_sequence_in_pieces(tree: Tree, cut: int) -> None:
    """The returned state goes into the next call: together they give what one call gives."""
    config = Config(input_dim=3, hidden_dim=5, num_layers=2)
    weights, inputs = weights_of(config), {"x": normal(2, 7, 3), "state": normal(2, 2, 5)}
    layer, want = layer_of(tree, config, weights), bounded(config, inputs, weights)
    first, state = tree(layer, {"x": inputs["x"][:, :cut], "state": inputs["state"]})
    rest, last = tree(layer, {"x": inputs["x"][:, cut:], "state": state})
    assert ratio(np.concatenate([first, rest], axis=1), want["y"]) <= 1
    assert ratio(last, want["out1"]) <= 1
    if cut == 0:
        assert np.array_equal(state, inputs["state"])


# Gates that are fully open or shut ------------------------------------------------------------------------------------


def shut(gate: int, value: float) -> tuple[Config, Arrays]:
    """A layer in which one gate is 0 or 1 to the bit, whatever comes."""
    config = Config(input_dim=3, hidden_dim=5)
    weights = weights_of(config)
    weights["layers.0.b_x"][gate] = value
    return config, weights


def test_an_update_gate_at_1_keeps_the_state(tree: Tree) -> None:
    config, weights = shut(1, 1000.0)
    state = np.zeros((1, 2, 5))
    y, last = tree(layer_of(tree, config, weights), {"x": normal(2, 7, 3), "state": state})
    assert not y.any()
    assert np.array_equal(last, state)


def test_an_update_gate_at_0_takes_the_candidate(tree: Tree) -> None:
    config, weights = shut(1, -1000.0)
    (y, _), tape = tree.trace(layer_of(tree, config, weights), {"x": normal(2, 7, 3)})
    assert np.array_equal(y, tape["layers.0.n"])
    assert not tape["layers.0.z"].any()


def test_a_reset_gate_at_0_shuts_out_the_recurrent_product_and_its_bias(tree: Tree) -> None:
    """In the paper's order, reset before the product, the bias would still count."""
    config, weights = shut(0, -1000.0)
    inputs = {"x": normal(2, 7, 3), "state": normal(1, 2, 5)}
    layer = layer_of(tree, config, weights)
    y, _ = tree(layer, inputs)
    grads = tree.gradients(layer, inputs, normal(*y.shape))
    assert not grads["dlayers.0.w_h"][2].any()
    assert not grads["dlayers.0.b_h"][2].any()
    assert grads["dlayers.0.b_x"][2].all()
    weights["layers.0.b_h"][2] += 1.0
    assert np.array_equal(tree(layer_of(tree, config, weights), inputs)[0], y)


def test_nothing_is_dropped_behind_the_last_layer(tree: Tree) -> None:
    """One layer in training gives what it gives in evaluation, whatever the rate."""
    config = Config(input_dim=3, hidden_dim=5, dropout=0.5)
    layer, inputs = layer_of(tree, config, weights_of(config)), {"x": normal(2, 7, 3)}
    want = tree(layer, inputs)
    for got, expected in zip(tree(tree.training(layer), inputs), want, strict=True):
        assert np.array_equal(got, expected)


# Initial weights ------------------------------------------------------------------------------------------------------


def test_weights_are_drawn_as_torch_draws_them(tree: Tree) -> None:
    """Within 1/sqrt(hidden_dim) of 0, all four, and near that limit somewhere."""
    config = Config(input_dim=61, hidden_dim=37)
    limit = 1 / np.sqrt(37.0)
    for name, value in tree.build(config).params().items():
        largest = np.abs(tree.numpy(value)).max()
        assert 0.9 * limit < largest < limit, name


# JAX ------------------------------------------------------------------------------------------------------------------


def test_the_program_does_not_grow_with_the_sequence() -> None:
    """A scan, forward and backward: 256 steps compile as fast as 3."""
    config = EXAMPLES["stacked"]
    weights = jax.tree.map(jnp.asarray, weights_of(config))

    def equations(t: int) -> int:
        def loss(weights: Any, x: Any) -> Any:
            return layer_of(TREES["jax"], config, weights)(x)[0].sum()

        return str(jax.make_jaxpr(jax.grad(loss))(weights, jnp.asarray(normal(2, t, config.input_dim)))).count(" = ")

    assert equations(3) == equations(256)


def test_traces_inside_jit_grad_and_vmap() -> None:
    config = EXAMPLES["stacked"]
    weights, x = weights_of(config), normal(3, 2, 5, config.input_dim)
    layer = layer_of(TREES["jax"], config, weights)

    def taped(x: Any) -> Any:
        (y, last), tape = attn_jax.trace(layer, x)
        return (y * y).sum(), (tape, last)

    value, (_, last) = jax.jit(jax.vmap(taped))(jnp.asarray(x))
    grads, (tape, _) = jax.jit(jax.vmap(jax.grad(taped, has_aux=True)))(jnp.asarray(x))
    assert value.shape == (3,)
    assert grads.shape == x.shape
    for i in range(3):
        (y, _), want = attn_np.trace(layer_of(TREES["numpy"], config, weights), x[i])
        assert set(want) == set(tape)
        limits = bounded(config, {"x": x[i]}, weights)
        assert ratio(tape["y"][i], limits["y"]) <= 1
        assert ratio(last[i], limits["out1"]) <= 1
        assert all(tape[name][i].shape == value.shape for name, value in want.items())
