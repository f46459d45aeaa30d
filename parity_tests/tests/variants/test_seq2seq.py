"""Encoder and attention decoder against PyTorch's layers step by step, identities, and decoding that feeds itself."""

from dataclasses import replace
from math import exp, tanh
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import attn_jax
import attn_np
from attn_np.contract import additive
from attn_np.contract.seq2seq import EXAMPLES, Config, RecurrentDecoderConfig
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.variants.test_gru import step
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, torch_gradients, weights_of

SMALL = Config(input_dim=3, hidden_dim=5, num_layers=2, output_dim=2)
FREE = replace(SMALL, output_dim=None)
WORDS = Config(input_dim=3, hidden_dim=5, num_layers=2, vocab_size=7)


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 7, size=shape)


# Scalar loops from the equations --------------------------------------------------------------------------------------


def dropped(x: list[float], keep: list[bool] | None, rate: float) -> list[float]:
    return x if keep is None else [v / (1 - rate) if kept else 0.0 for v, kept in zip(x, keep, strict=True)]


def product(x: list[float], w: list[list[float]]) -> list[float]:
    return [sum(v * row[c] for v, row in zip(x, w, strict=True)) for c in range(len(w[0]))]


def encoded(config: Config, w: Any, source: Any, real: Any, keep: Any) -> tuple[Any, Any]:
    """What the encoder leaves at every position, and its last states. Padding changes no state."""
    entries, last = source, []
    for i in range(config.num_layers):
        h, states = [0.0] * config.hidden_dim, []
        for entry, here in zip(entries, real, strict=True):
            h = step(w, f"encoder.layers.{i}", entry, h) if here else h
            states.append(h)
        last.append(h)
        way = None if keep is None or i == config.num_layers - 1 else keep[i]
        entries = [dropped(x, way and way[s], config.dropout) for s, x in enumerate(states)]
    return entries, last


def looked(w: Any, asked: list[float], memory: Any, allowed: list[bool]) -> list[float]:
    """The weights of one query."""
    q, raised = product(asked, w["decoder.attention.w_q"]), []
    for place, shown in zip(memory, allowed, strict=True):
        k = product(place, w["decoder.attention.w_k"])
        score = sum(v * tanh(a + b) for v, a, b in zip(w["decoder.attention.w_score"], q, k, strict=True))
        raised.append(exp(score) if shown else 0.0)
    return [e / sum(raised) if e else 0.0 for e in raised]


def loops(config: Config, w: Any, row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Outputs, last states and weights of one batch row, one number at a time."""
    source, target = (row[name] for name in ("source", "target"))
    if config.vocab_size is not None:
        source, target = ([w["embedding"][token] for token in words] for words in (source, target))
    mask = row["mask"] or [[True] * len(source)] * len(target)
    real = [any(seen) for seen in zip(*mask, strict=True)]
    memory, h = encoded(config, w, source, real, row["encoder_keep"])
    h, outputs, found = row["state"] or h, [], []
    for t, entry in enumerate(target):
        weights = looked(w, h[-1], memory, mask[t])
        used = dropped(weights, row["keep"] and row["keep"][t], config.dropout)
        x, after = product(used, memory) + entry, []
        for i in range(config.num_layers):
            after.append(step(w, f"decoder.gru.layers.{i}", x, h[i]))
            keep = row["decoder_keep"] and i < config.num_layers - 1 and row["decoder_keep"][i][t]
            x = dropped(after[-1], keep or None, config.dropout)
        h = after
        outputs.append([a + b for a, b in zip(product(h[-1], w["decoder.w_o"]), w["decoder.b_o"], strict=True)])
        found.append(weights)
    return outputs, h, found


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs, last states and the weights of every step."""
    b, s = inputs["source"].shape[:2]
    t = inputs["target"].shape[1]
    spread = {"mask": (b, t, s), "keep": (b, t, s)}
    inputs = inputs | {name: np.broadcast_to(inputs[name], shape) for name, shape in spread.items() if name in inputs}
    w, rows = {name: p.tolist() for name, p in params.items()}, []
    for n in range(b):
        row = {name: x[n].tolist() for name, x in inputs.items() if name in ("source", "target", "mask", "keep")}
        row |= {name: x[:, n].tolist() for name, x in inputs.items() if name not in row}
        absent = ("mask", "keep", "state", "encoder_keep", "decoder_keep")
        rows.append(loops(config, w, dict.fromkeys(absent) | row))
    y, last, probs = zip(*rows, strict=True)
    return {"y": np.array(y), "out1": np.stack(last, axis=1), "out2": np.array(probs)}


# PyTorch's layers, step by step ---------------------------------------------------------------------------------------


class Reference(torch.nn.Module):
    """An encoder and a decoder as they are usually built, with a loop over the target.

    Args:
        config: the widths.
        weights: ours, copied into PyTorch's layers.
        axis: of the weights (b, 1, s) along which they are normalised; -1 are the keys.
    """

    def __init__(self, config: Config, weights: Arrays, axis: int = -1) -> None:
        super().__init__()
        d, e, o = (config.sizes()[letter] for letter in "deo")
        self.axis, self.rate = axis, config.dropout
        self.encoder, self.gru = torch.nn.ModuleList(), torch.nn.ModuleList()
        for i in range(config.num_layers):
            self.encoder.append(torch.nn.GRU(e if i else d, e, batch_first=True))
            self.gru.append(torch.nn.GRUCell(e if i else e + d, e))
        self.to_query, self.to_key = torch.nn.Linear(e, e, bias=False), torch.nn.Linear(e, e, bias=False)
        self.to_score = torch.nn.Linear(e, 1, bias=False)
        self.dense = torch.nn.Linear(e, o)
        self.double()
        self.load_state_dict({their(name): torch.from_numpy(to_torch(name, x)) for name, x in weights.items()})

    def dropped(self, x: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        return x if keep is None else x * keep / (1 - self.rate)

    def look(self, query: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        features = torch.tanh(self.to_query(query).unsqueeze(2) + self.to_key(memory).unsqueeze(1))
        scores = self.to_score(features).squeeze(-1)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, dim=self.axis)

    def forward(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        state: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        keep: torch.Tensor | None = None,
        encoder_keep: torch.Tensor | None = None,
        decoder_keep: torch.Tensor | None = None,
    ) -> Any:
        memory, last, outputs, found = source, [], [], []
        for i, layer in enumerate(self.encoder):
            drop = None if encoder_keep is None or i == 0 else encoder_keep[i - 1]
            memory, end = layer(self.dropped(memory, drop))
            last.append(end[0])
        h = last if state is None else list(state)
        for t, entry in enumerate(target.unbind(1)):
            weights = self.look(h[-1].unsqueeze(1), memory, None if mask is None else mask[:, t : t + 1])
            context = torch.bmm(self.dropped(weights, None if keep is None else keep[:, t : t + 1]), memory)
            x = torch.cat([context.squeeze(1), entry], dim=-1)
            for i, layer in enumerate(self.gru):
                drop = None if decoder_keep is None or i == 0 else decoder_keep[i - 1, :, t]
                x = h[i] = layer(self.dropped(x, drop), h[i])
            outputs.append(x)
            found.append(weights)
        return self.dense(torch.stack(outputs, dim=1)), torch.stack(h), torch.cat(found, dim=1)


LINEAR = {"attention.w_q": "to_query.weight", "attention.w_k": "to_key.weight", "attention.w_score": "to_score.weight"}
LINEAR |= {"w_o": "dense.weight", "b_o": "dense.bias"}
GATES = {"w_x": "weight_ih", "w_h": "weight_hh", "b_x": "bias_ih", "b_h": "bias_hh"}


def their(name: str) -> str:
    """PyTorch's name of one of our parameters."""
    name = name.removeprefix("decoder.")
    if name in LINEAR:
        return LINEAR[name]
    part, _, i, kind = name.split(".")
    return f"{part}.{i}.{GATES[kind]}" + ("_l0" if part == "encoder" else "")


def to_torch(name: str, x: np.ndarray) -> np.ndarray:
    """Outputs before inputs, gates one below the other."""
    if x.ndim == 3:
        return np.concatenate([gate.T for gate in x])
    return x.reshape(-1) if ".b_" in name else np.atleast_2d(x.T)


def bounded_both(
    config: Any, inputs: Arrays, weights: Arrays, dy: np.ndarray, dlast: np.ndarray | None = None
) -> dict[str, Any]:
    """What the reference gives for gradients of outputs and last state, each number with its bound in float64."""
    layer = layer_of(TREES["numpy"], config, weights)
    layer.set_params({name: ErrArray(value, 0.0) for name, value in weights.items()})
    given = {name: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    with precision(precision_of("float64")):
        tape: dict[str, Any] = {}
        y, last, probs = layer(**given, tape=tape, return_weights=True)
        grads = layer.vjp(tape, ErrArray(dy, 0.0), None if dlast is None else ErrArray(dlast, 0.0))
    return {"y": y, "last": last, "probs": probs} | {f"d{n}": g for n, g in (grads.inputs | grads.params).items()}


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("call", ["plain", "state", "full"])
def test_torch_layers_step_by_step(layers: int, call: str) -> None:
    """Outputs, last states, the weights of every step, and every gradient, from gradients of outputs and states."""
    config, rng = replace(SMALL, num_layers=layers, dropout=0.25), np.random.default_rng(layers)
    weights, inputs = weights_of(config), {"source": normal(2, 7, 3), "target": normal(2, 3, 3)}
    inputs |= {} if call == "plain" else {"state": normal(layers, 2, 5)}
    if call == "full":
        shapes = {"mask": (2, 3, 7), "keep": (2, 3, 7)}
        shapes |= {"encoder_keep": (layers - 1, 2, 7, 5), "decoder_keep": (layers - 1, 2, 3, 5)}
        inputs |= {name: rng.random(shape) < 0.75 for name, shape in shapes.items()}
        inputs["mask"][:, :, 0] = inputs["mask"][:, 0, :] = True  # every target sees something, every key is seen
    dy, dlast = normal(2, 3, 2), normal(layers, 2, 5)
    given, model = {name: torch.from_numpy(x) for name, x in inputs.items()}, Reference(config, weights)
    leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
    y, last, probs = model(**given)
    torch.autograd.backward([y, last], [torch.from_numpy(dy), torch.from_numpy(dlast)])
    want = bounded_both(config, inputs, weights, dy, dlast)
    got = {"y": y.detach(), "last": last.detach(), "probs": probs.detach()}
    got |= {f"d{name}": leaf.grad for name, leaf in leaves.items()}
    for name, value in got.items():
        assert ratio(value, want[name]) <= 1, name
    for name in weights:
        grad, limit = model.get_parameter(their(name)).grad, want[f"d{name}"]
        assert ratio(grad, ErrArray(to_torch(name, limit.v), to_torch(name, limit.b))) <= 1, name


def test_normalised_over_the_queries_a_decoder_never_learns_to_attend() -> None:
    """One query at a time: every weight is 1, and what makes the scores gets a gradient of exactly 0."""
    weights = weights_of(SMALL)
    source, target = torch.from_numpy(normal(2, 7, 3)), torch.from_numpy(normal(2, 3, 3))
    names = ("to_query.weight", "to_key.weight", "to_score.weight")
    for axis, learns in ((1, False), (-1, True)):
        model = Reference(SMALL, weights, axis)
        y, _, probs = model(source, target)
        grads = torch_gradients(y, **{name: model.get_parameter(name) for name in names})
        assert bool(torch.all(probs == 1)) is not learns
        assert all(np.all(grad) if learns else not np.any(grad) for grad in grads.values())


def test_shapes_of_the_usual_example(tree: Tree) -> None:
    """Four sources of eight steps, one step of the target, ten wide, twenty hidden, two layers, eight outputs."""
    layer = tree.build(Config(input_dim=10, hidden_dim=20, num_layers=2, output_dim=8, dropout=0.1))
    inputs = {"source": normal(4, 8, 10), "target": normal(4, 1, 10)}
    y, state, probs = tree(layer, inputs, return_weights=True)
    assert (y.shape, state.shape, probs.shape) == ((4, 1, 8), (2, 4, 20), (4, 1, 8))
    memory, last = tree(layer.encoder, {"x": inputs["source"]})
    assert (memory.shape, last.shape) == ((4, 8, 20), (2, 4, 20))
    y, state = tree(layer.decoder, {"target": inputs["target"], "memory": memory, "state": last})
    assert (y.shape, state.shape) == ((4, 1, 8), (2, 4, 20))


def test_gradients_of_the_last_state(tree: Tree) -> None:
    weights = weights_of(SMALL)
    inputs: dict[str, Any] = {"source": normal(2, 5, 3), "target": normal(2, 3, 3)}
    dy, dlast = normal(2, 3, 2), normal(2, 2, 5)
    want = bounded_both(SMALL, inputs, weights, dy, dlast)
    layer = layer_of(tree, SMALL, weights)
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
            return layer_of(tree, SMALL, weights)(**inputs)

        given = jax.tree.map(jnp.asarray, (weights, inputs))
        pulled = jax.jit(lambda w, x, d: jax.vjp(call, w, x)[1](d))(*given, (jnp.asarray(dy), jnp.asarray(dlast)))
        got = {f"d{name}": np.asarray(g) for name, g in (pulled[0] | pulled[1]).items()}
    for name, value in got.items():
        assert ratio(value, want[name]) <= 1, name
    assert got.keys() == want.keys() - {"y", "last", "probs"}


# The decoder by itself ------------------------------------------------------------------------------------------------


def decoder_of(config: Config, weights: Arrays) -> tuple[RecurrentDecoderConfig, Arrays]:
    child = config.children()["decoder"]
    assert isinstance(child, RecurrentDecoderConfig)
    return child, {name[8:]: value for name, value in weights.items() if name.startswith("decoder.")}


def test_encoder_and_decoder_one_after_the_other(tree: Tree) -> None:
    weights, inputs = weights_of(SMALL), {"source": normal(2, 7, 3), "target": normal(2, 3, 3)}
    layer, want = layer_of(tree, SMALL, weights), bounded(SMALL, inputs, weights)
    memory, state = tree(layer.encoder, {"x": inputs["source"]})
    given = {"target": inputs["target"], "memory": memory, "state": state}
    y, last, probs = tree(layer.decoder, given, return_weights=True)
    for name, value in (("y", y), ("out1", last), ("out2", probs)):
        assert ratio(value, want[name]) <= 1, name


def test_gradients_of_the_decoder(tree: Tree) -> None:
    config, weights = decoder_of(SMALL, weights_of(SMALL))
    inputs = {"target": normal(2, 3, 3), "memory": normal(2, 7, 5), "state": normal(2, 2, 5)}
    inputs |= {"mask": np.random.default_rng(0).random((2, 3, 7)) < 0.6}
    layer, want = layer_of(tree, config, weights), bounded_both(config, inputs, weights, normal(2, 3, 2))
    y, last, probs = tree(layer, inputs, return_weights=True)
    got = {"y": y, "last": last, "probs": probs} | tree.gradients(layer, inputs, normal(2, 3, 2))
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert ratio(value, want[name]) <= 1, name


def test_contexts_are_additive_attention_with_the_states_before_the_steps(tree: Tree) -> None:
    weights, inputs = weights_of(SMALL), {"source": normal(2, 7, 3), "target": normal(2, 3, 3)}
    inputs |= {"mask": np.random.default_rng(0).random((2, 3, 7)) < 0.6}
    _, tape = tree.trace(layer_of(tree, SMALL, weights), inputs)
    states = np.concatenate([tape["decoder.state"][-1][:, None], tape["decoder.gru.layers.1.h"]], axis=1)
    config = additive.Config(query_dim=5, hidden_dim=5)
    given = {"query": states[:, :-1], "key": tape["decoder.memory"], "value": tape["decoder.memory"]}
    given |= {"mask": inputs["mask"]}
    inner = {name.rpartition(".")[2]: x for name, x in weights.items() if name.startswith("decoder.attention.")}
    want = bounded(config, given, inner)
    assert ratio(tape["decoder.context"], want["y"]) <= 1
    assert ratio(tape["decoder.probs"], want["out1"]) <= 1


# A target in pieces, a source with padding ----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_target_in_pieces(tree: Tree, cut: int) -> None:
    """The returned state goes into the next call: together they give what one call gives."""
    weights, source, target = weights_of(SMALL), normal(2, 7, 3), normal(2, 4, 3)
    want = bounded(SMALL, {"source": source, "target": target}, weights)
    layer = layer_of(tree, SMALL, weights)
    first = tree(layer, {"source": source, "target": target[:, :cut]}, return_weights=True)
    rest = tree(layer, {"source": source, "target": target[:, cut:], "state": first[1]}, return_weights=True)
    assert ratio(np.concatenate([first[0], rest[0]], axis=1), want["y"]) <= 1
    assert ratio(rest[1], want["out1"]) <= 1
    assert ratio(np.concatenate([first[2], rest[2]], axis=1), want["out2"]) <= 1


def test_padding_changes_nothing(tree: Tree) -> None:
    """Sources of unequal length in one batch give what each gives by itself: the encoder passes over padding too."""
    weights, source, target = weights_of(SMALL), normal(2, 7, 3), normal(2, 3, 3)
    mask = np.arange(7) < np.array([7, 4])[:, None]
    inputs = {"source": np.where(mask[:, :, None], source, np.nan), "target": target, "mask": mask[:, None]}
    y, state, probs = tree(layer_of(tree, SMALL, weights), inputs, return_weights=True)
    for i, length in enumerate((7, 4)):
        alone = {"source": source[i : i + 1, :length], "target": target[i : i + 1]}
        want = bounded(SMALL, alone, weights)
        assert ratio(y[i : i + 1], want["y"]) <= 1
        assert ratio(state[:, i : i + 1], want["out1"]) <= 1
        assert ratio(probs[i : i + 1, :, :length], want["out2"]) <= 1
        assert not probs[i, :, length:].any()


@pytest.mark.parametrize("before", [0, 2])
def test_padding_gets_no_gradient_and_changes_none(tree: Tree, before: int) -> None:
    """Behind the source or before it."""
    weights, source, target = weights_of(SMALL), normal(1, 4, 3), normal(1, 3, 3)
    real = np.zeros(7, bool)
    real[before : before + 4] = True
    padded = np.full((1, 7, 3), np.nan)
    padded[:, real] = source
    inputs = {"source": padded, "target": target, "mask": real[None, None]}
    got = tree.gradients(layer_of(tree, SMALL, weights), inputs, cotangent((1, 3, 2)))
    assert not got["dsource"][:, ~real].any()
    got["dsource"] = got["dsource"][:, real]
    want = bounded_both(SMALL, {"source": source, "target": target}, weights, cotangent((1, 3, 2)))
    for name, grad in got.items():
        assert ratio(grad, want[name]) <= 1, name


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_the_decoder_by_itself_ignores_hidden_memory(tree: Tree, value: float) -> None:
    config, weights = decoder_of(SMALL, weights_of(SMALL))
    clean = {"target": normal(2, 3, 3), "memory": normal(2, 7, 5), "state": normal(2, 2, 5)}
    clean |= {"mask": np.ones((2, 3, 7), bool)}
    clean["mask"][1, :, 4] = False
    dirty = clean | {"memory": clean["memory"].copy()}
    dirty["memory"][1, 4] = value
    layer = layer_of(tree, config, weights)
    for got, want in zip(tree(layer, dirty), tree(layer, clean), strict=True):
        assert np.array_equal(got, want)
    got, want = (tree.gradients(layer, given, cotangent((2, 3, 2))) for given in (dirty, clean))
    for name, grad in got.items():
        assert np.array_equal(grad, want[name]), name
    assert not got["dmemory"][1, 4].any()


# Running freely -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True])
def test_generate_feeds_outputs_back(tree: Tree, given: bool) -> None:
    """Given its own outputs as targets, one later, the decoder repeats them."""
    weights, source, start = weights_of(FREE), normal(2, 7, 3), normal(2, 1, 3)
    mask, state = np.array([[[True] * 7], [[True] * 4 + [False] * 3]]), normal(2, 2, 5)
    options = {"mask": mask, "state": state} if given else {}
    layer = layer_of(tree, FREE, weights)
    y, last = layer.generate(tree.array(source), tree.array(start), steps=4, **tree.arrays(options))
    y, last = tree.numpy(y), tree.numpy(last)
    fed = np.concatenate([start, y[:, :-1]], axis=1)
    want = bounded(FREE, {"source": source, "target": fed} | options, weights)
    assert ratio(y, want["y"]) <= 1
    assert ratio(last, want["out1"]) <= 1
    y, last = layer.generate(tree.array(source), tree.array(start), steps=0, **tree.arrays(options))
    assert tuple(y.shape) == (2, 0, 3)
    if given:
        assert np.array_equal(tree.numpy(last), state)


def decode(tree: Tree, steps: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    layer = layer_of(tree, WORDS, weights_of(WORDS))
    found = layer.greedy(tree.array(tokens(5, 7)), tree.array(tokens(5, 1)), steps=steps, stop=stop)
    return tree.numpy(found[0]), tree.numpy(found[1])


@pytest.mark.parametrize("stop", range(7))
def test_greedy_takes_the_likeliest_token_until_the_stop(stop: int) -> None:
    """Scalar decisions from teacher forcing: the tokens before the stop repeat themselves, the rest is the stop."""
    tree = TREES["numpy"]
    found, lengths = decode(tree, 9, stop)
    fed = np.concatenate([tokens(5, 1), found[:, :-1]], axis=1)
    y, _ = tree(layer_of(tree, WORDS, weights_of(WORDS)), {"source": tokens(5, 7), "target": fed})
    for row, length, scores in zip(found, lengths, y, strict=True):
        assert all(row[length:] == stop)
        assert stop not in row[:length]
        assert all(row[: length + 1] == scores.argmax(axis=1)[: length + 1])


def test_greedy_stops_at_different_steps_in_the_cases_above() -> None:
    """Otherwise the test above would show little: rows that stop at once, later and never, side by side."""
    found = [tuple(decode(TREES["numpy"], 9, stop)[1]) for stop in range(7)]
    assert {0, 9} < {length for lengths in found for length in lengths}
    assert any(len(set(lengths)) > 2 for lengths in found)


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("stop", [0, 3])
def test_greedy_is_the_same_in_every_tree(name: str, stop: int) -> None:
    for got, want in zip(decode(TREES[name], 9, stop), decode(TREES["numpy"], 9, stop), strict=True):
        assert np.array_equal(got, want)


def test_greedy_without_steps(tree: Tree) -> None:
    found, lengths = decode(tree, 0, 3)
    assert found.shape == (5, 0)
    assert lengths.tolist() == [0] * 5


def test_greedy_under_jit() -> None:
    """Shapes do not depend on where it stops."""
    tree = TREES["jax"]
    layer = layer_of(tree, WORDS, weights_of(WORDS))
    run = nnx.jit(lambda layer, source, start: layer.greedy(source, start, steps=9, stop=3))
    found = run(layer, jnp.asarray(tokens(5, 7), jnp.int32), jnp.asarray(tokens(5, 1), jnp.int32))
    for got, want in zip(found, decode(TREES["numpy"], 9, 3), strict=True):
        assert np.array_equal(got, want)


def test_generation_drops_nothing(tree: Tree) -> None:
    config = replace(FREE, dropout=0.5)
    layer = layer_of(tree, config, weights_of(config))
    given = tree.array(normal(2, 7, 3)), tree.array(normal(2, 1, 3))
    want = tree.numpy(layer.generate(*given, steps=3)[0])
    assert np.array_equal(tree.numpy(tree.training(layer).generate(*given, steps=3)[0]), want)


# What is refused ------------------------------------------------------------------------------------------------------


REFUSED = {
    "narrow": (SMALL, "generate", 1, {"steps": 3}, "output_dim=2, input_dim=3; pass every target"),
    "words": (WORDS, "generate", 1, {"steps": 3}, "scores for vocab_size=7 tokens; call greedy"),
    "vectors": (FREE, "greedy", 1, {"steps": 3, "stop": 0}, "vocab_size=None; set vocab_size=, or call generate"),
    "long": (FREE, "generate", 2, {"steps": 3}, r"one first input \(t=1\), got t=2; pass target\[:, :1\]"),
    "steps": (WORDS, "greedy", 1, {"steps": -1, "stop": 0}, "steps to be an integer from 0, got -1; set steps="),
}


@pytest.mark.parametrize("why", REFUSED)
def test_generation_that_cannot_be(tree: Tree, why: str, unchecked: None) -> None:
    config, method, t, options, message = REFUSED[why]
    words = config.vocab_size is not None
    source, start = (tokens(2, 7), tokens(2, t)) if words else (normal(2, 7, 3), normal(2, t, 3))
    with pytest.raises(ValueError, match=f"^seq2seq: expected .*{message}"):
        getattr(tree.build(config), method)(tree.array(source), tree.array(start), **options)


def test_a_vocabulary_sets_the_outputs() -> None:
    assert WORDS.sizes()["o"] == 7
    assert replace(WORDS, output_dim=7).shapes() == WORDS.shapes()
    with pytest.raises(ValueError, match=r"^seq2seq: expected one output for each token .* leave output_dim out"):
        replace(WORDS, output_dim=5)


# JAX ------------------------------------------------------------------------------------------------------------------


def test_the_program_does_not_grow_with_the_sequences() -> None:
    """Scans, forward and backward: 256 steps compile as fast as 3."""
    weights = jax.tree.map(jnp.asarray, weights_of(SMALL))

    def equations(t: int) -> int:
        def loss(weights: Any, x: Any) -> Any:
            return layer_of(TREES["jax"], SMALL, weights)(x, x)[0].sum()

        return str(jax.make_jaxpr(jax.grad(loss))(weights, jnp.asarray(normal(2, t, 3)))).count(" = ")

    assert equations(3) == equations(256)


def test_traces_inside_jit_grad_and_vmap() -> None:
    config = EXAMPLES["plain"]
    weights, x = weights_of(config), normal(3, 2, 5, config.input_dim)
    layer = layer_of(TREES["jax"], config, weights)

    def taped(x: Any) -> Any:
        (y, last), tape = attn_jax.trace(layer, x, x[:, :3])
        return (y * y).sum(), (tape, last)

    run = jax.jit(jax.vmap(jax.value_and_grad(taped, has_aux=True)))
    (value, (tape, last)), grads = run(jnp.asarray(x))
    assert value.shape == (3,)
    assert grads.shape == x.shape
    for i in range(3):
        _, want = attn_np.trace(layer_of(TREES["numpy"], config, weights), x[i], x[i, :, :3])
        assert set(want) == set(tape)
        limits = bounded(config, {"source": x[i], "target": x[i, :, :3]}, weights)
        assert ratio(tape["y"][i], limits["y"]) <= 1
        assert ratio(last[i], limits["out1"]) <= 1
        assert all(tape[name][i].shape == value.shape for name, value in want.items())
