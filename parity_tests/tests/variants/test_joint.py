"""Joint attention against scalar loops, PyTorch's function on both streams in one, and identities."""

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from attn_np.contract import mha
from attn_np.contract.joint import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of

STREAMS = {"query": "", "added": "added_"}  # what stands in the names of a stream's parameters

# Scalar loops ---------------------------------------------------------------------------------------------------------


def projected(config: Config, w: Any, stream: str, what: str, word: list[float]) -> list[list[float]]:
    """What each head has of one word of a stream."""
    name, found = f"{STREAMS[stream]}{what}", []
    weight, shift, norm = w[f"w_{name}"], w.get(f"b_{name}"), w.get(f"w_{name}_norm")
    for h in range(config.num_heads):
        head = []
        for c in range(len(weight[0][h])):
            total = 0.0 if shift is None else shift[h][c]
            for x, row in zip(word, weight, strict=True):
                total += x * row[h][c]
            head.append(total)
        if norm is not None:
            root = sqrt(sum(x * x for x in head) / len(head) + config.norm_eps)
            head = [x / root * gain for x, gain in zip(head, norm, strict=True)]
        found.append(head)
    return found


def of_row(config: Config, w: Any, words: dict[str, Any], shown: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The outputs of every stream that has any, and the weights of every head."""
    asking = list(STREAMS) if config.added_output else ["query"]
    queries = [(stream, projected(config, w, stream, "q", word)) for stream in asking for word in words[stream]]
    keys, values, seen = [], [], []
    for stream in STREAMS:
        for word, is_shown in zip(words[stream], shown[stream], strict=True):
            keys.append(projected(config, w, stream, "k", word))
            values.append(projected(config, w, stream, "v", word))
            seen.append(is_shown)
    outputs, weights = {stream: [] for stream in asking}, [[] for _ in range(config.num_heads)]
    for stream, query in queries:
        w_o = w[f"w_{STREAMS[stream]}o"]
        y = list(w.get(f"b_{STREAMS[stream]}o", [0.0] * len(w_o[0][0])))
        for h, q in enumerate(query):
            scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
            raised = [
                exp(scale * sum(a * b for a, b in zip(q, key[h], strict=True))) if is_seen else 0.0
                for key, is_seen in zip(keys, seen, strict=True)
            ]
            own = [e / sum(raised) if e else 0.0 for e in raised]
            weights[h].append(own)
            for c in range(len(w_o[h])):
                context = sum(a * value[h][c] for a, value in zip(own, values, strict=True))
                y = [total + context * x for total, x in zip(y, w_o[h][c], strict=True)]
        outputs[stream].append(y)
    return list(outputs.values()), weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs of both streams, and the weights of every head."""
    w = {name: p.tolist() for name, p in params.items()}
    streams = {name: inputs[name] for name in STREAMS}
    masks = {"query": inputs.get("mask", True), "added": inputs.get("added_mask", True)}
    shown = {name: np.broadcast_to(masks[name], x.shape[:2]) for name, x in streams.items()}
    rows = []
    for i in range(len(inputs["query"])):
        words, seen = ({name: x[i].tolist() for name, x in arrays.items()} for arrays in (streams, shown))
        outputs, weights = of_row(config, w, words, seen)
        rows.append((*outputs, weights))
    names = ("y", "out1", "out2")
    return {name: np.array(found, np.float64) for name, found in zip(names, zip(*rows, strict=True), strict=False)}


# Functions of others --------------------------------------------------------------------------------------------------


def test_pytorch_function_on_both_streams_in_one(tree: Tree) -> None:
    """Outputs, and the gradients of both streams from both outputs; some words of the added stream are padding."""
    config = Config(d_model=6, num_heads=2, added_dim=5, norm="rms")
    w, rng = weights_of(config), np.random.default_rng(1)
    inputs: Arrays = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 5))}
    inputs["added_mask"] = np.array([[True, True, False], [True, False, False]])
    p = {name: torch.from_numpy(x) for name, x in w.items()}
    leaves = {name: torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "added")}

    def heads(what: str, norm: bool) -> torch.Tensor:
        parts = []
        for name, x in zip(STREAMS.values(), leaves.values(), strict=True):
            part = torch.einsum("btd,dhk->bhtk", x, p[f"w_{name}{what}"]) + p[f"b_{name}{what}"][:, None]
            if norm:
                part = functional.rms_norm(part, part.shape[-1:], p[f"w_{name}{what}_norm"], config.norm_eps)
            parts.append(part)
        return torch.cat(parts, 2)

    seen = torch.cat([torch.ones(2, 4, dtype=torch.bool), torch.from_numpy(inputs["added_mask"])], 1)
    context = functional.scaled_dot_product_attention(
        heads("q", True), heads("k", True), heads("v", False), seen[:, None, None]
    )
    y, added_y = (
        torch.einsum("bhtv,hvo->bto", part, p[f"w_{name}o"]) + p[f"b_{name}o"]
        for name, part in zip(STREAMS.values(), context.split((4, 3), 2), strict=True)
    )
    dys = [torch.from_numpy(cotangent(tuple(x.shape))) for x in (y, added_y)]
    grads = torch.autograd.grad([y, added_y], list(leaves.values()), dys)
    want = {"y": y, "out1": added_y} | {f"d{name}": x for name, x in zip(leaves, grads, strict=True)}
    limits = bounded(config, inputs, w)
    assert all(ratio(x.detach().numpy(), limits[name]) <= 1 for name, x in want.items())
    layer = layer_of(tree, config, w)
    found = dict(zip(("y", "out1"), tree(layer, inputs), strict=True))
    assert all(ratio(x, ErrArray(want[n].detach().numpy(), 2 * limits[n].b)) <= 1 for n, x in found.items())


# Identities -----------------------------------------------------------------------------------------------------------


def test_the_same_weights_for_both_streams_are_mha_of_one_behind_the_other(tree: Tree) -> None:
    config, whole = Config(d_model=6, num_heads=2), mha.Config(d_model=6, num_heads=2)
    w, rng = weights_of(whole), np.random.default_rng(2)
    both = w | {f"{name[:2]}added_{name[2:]}": x for name, x in w.items()}
    x = rng.normal(size=(2, 7, 6))
    mask = rng.random((2, 7)) < 0.6
    inputs = {"query": x[:, :4], "added": x[:, 4:], "mask": mask[:, :4], "added_mask": mask[:, 4:]}
    got = np.concatenate(tree(layer_of(tree, config, both), inputs), 1)
    one = {"query": x, "mask": mask[:, None, None]}
    limits = bounded(whole, one, w)["y"]
    (want,) = tree(layer_of(tree, whole, w), one)
    assert ratio(got, ErrArray(want, 2 * limits.b)) <= 1


@pytest.mark.parametrize("norm", [None, "rms"])
def test_streams_that_change_places_change_their_outputs(tree: Tree, norm: str | None) -> None:
    config, rng = Config(d_model=6, num_heads=2, norm=norm), np.random.default_rng(3)
    w, inputs = weights_of(config), {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    names = {name: name.replace("added_", "") if "added" in name else f"{name[:2]}added_{name[2:]}" for name in w}
    other = {names[name]: x for name, x in w.items()}
    limits = bounded(config, inputs, w)
    y, added_y = tree(layer_of(tree, config, w), inputs)
    got = tree(layer_of(tree, config, other), {"query": inputs["added"], "added": inputs["query"]})
    assert ratio(got[1], ErrArray(y, 2 * limits["y"].b)) <= 1
    assert ratio(got[0], ErrArray(added_y, 2 * limits["out1"].b)) <= 1


def test_without_an_output_the_added_stream_has_keys_and_values_alone(tree: Tree) -> None:
    """The first output of the same layer with both."""
    config, rng = Config(d_model=6, num_heads=2, norm="rms", added_output=False), np.random.default_rng(4)
    both = Config(d_model=6, num_heads=2, norm="rms")
    w, inputs = weights_of(both), {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    assert set(both.shapes()) - set(config.shapes()) == {
        "w_added_q", "w_added_o", "b_added_q", "b_added_o", "w_added_q_norm",
    }  # fmt: skip
    (y,) = tree(layer_of(tree, config, {name: w[name] for name in config.shapes()}), inputs)
    want = bounded(both, inputs, w)["y"]
    assert ratio(y, want) <= 1
    assert config.second_output() is None


@pytest.mark.parametrize("hidden", ["mask", "added_mask"])
def test_padding_of_a_stream_may_hold_anything(tree: Tree, hidden: str) -> None:
    """NaN there reaches neither the other stream's output nor the outputs of other positions."""
    config, rng = Config(d_model=6, num_heads=2, norm="rms"), np.random.default_rng(5)
    layer = layer_of(tree, config, weights_of(config))
    inputs: Arrays = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 4, 6))}
    inputs[hidden] = np.broadcast_to(np.arange(4) < 2, (2, 4))
    name, at = ("query", 0) if hidden == "mask" else ("added", 1)
    spoilt = inputs | {name: np.where(inputs[hidden][..., None], inputs[name], np.nan)}
    clean, dirty = tree(layer, inputs), tree(layer, spoilt)
    np.testing.assert_array_equal(dirty[1 - at], clean[1 - at])
    np.testing.assert_array_equal(dirty[at][:, :2], clean[at][:, :2])


def test_where_every_key_is_padding_outputs_are_biases(tree: Tree) -> None:
    config, rng = Config(d_model=6, num_heads=2), np.random.default_rng(6)
    w = weights_of(config)
    inputs: Arrays = {"query": np.full((1, 2, 6), np.nan), "added": rng.normal(size=(1, 3, 6))}
    inputs |= {"mask": np.zeros((1, 2), bool), "added_mask": np.zeros((1, 3), bool)}
    for name, y in zip(STREAMS.values(), tree(layer_of(tree, config, w), inputs), strict=True):
        np.testing.assert_array_equal(y, np.broadcast_to(w[f"b_{name}o"], y.shape))
    grads = tree.gradients(layer_of(tree, config, w), inputs, np.ones((1, 2, 6)))
    assert all(np.isfinite(x).all() for x in grads.values())
