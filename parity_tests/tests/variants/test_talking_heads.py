"""Talking-heads attention against scalar loops, multi-head attention, and maps that only exchange the heads."""

from dataclasses import replace
from math import exp, tanh
from typing import Any

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.talking_heads import Config
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.variants.test_mha import projected, sees, within
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    ratio,
    stacked,
    weights_of,
)


@pytest.fixture(params=["numpy", "torch"])
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


# Scalar loops, from the einsums of section 4 of the paper -------------------------------------------------------------


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Output of one batch row and the weights of every softmax: J = Q K, L = J P_l, W = softmax L, U = W P_w."""

    def part(name: str, words: Any, g: int) -> list[list[float]]:
        shift = w[f"b_{name}"][g] if config.use_bias else None
        return [projected(word, [row[g] for row in w[f"w_{name}"]], shift) for word in words]

    heads, softmaxes, t, s = range(config.num_heads), range(len(mask)), len(query), len(key)
    q, k, v = ([part(name, words, g) for g in heads] for name, words in zip("qkv", (query, key, value), strict=True))
    scale = len(q[0][0]) ** -0.5 if config.scale is None else config.scale
    y, weights = [], [[] for _ in softmaxes]
    for i in range(t):
        used = []
        for h in softmaxes:
            raised = []
            for j in range(s):
                logits = [scale * sum(a * b for a, b in zip(q[g][i], k[g][j], strict=True)) for g in heads]
                mixed = sum(logits[g] * w["w_mix_scores"][g][h] for g in heads) if config.mix_scores else logits[h]
                mixed = mixed if config.softcap is None else config.softcap * tanh(mixed / config.softcap)
                raised.append(exp(mixed + bias[h][i][j]) if mask[h][i][j] and sees(config, i, j, t, s) else 0.0)
            alpha = [e / sum(raised) if e else 0.0 for e in raised]
            weights[h].append(alpha)
            used.append([a / (1 - config.dropout) if on else 0.0 for a, on in zip(alpha, keep[h][i], strict=True)])
        out = list(w.get("b_o", [0.0] * len(w["w_o"][0][0])))
        for g in heads:
            share = [
                sum(used[h][j] * w["w_mix_weights"][h][g] for h in softmaxes) if config.mix_weights else used[g][j]
                for j in range(s)
            ]
            for c, row in enumerate(w["w_o"][g]):
                found = sum(a * word[c] for a, word in zip(share, v[g], strict=True))
                out = [x + found * weight for x, weight in zip(out, row, strict=True)]
        y.append(out)
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every softmax."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.softmax_heads or config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


def cross(**fields: Any) -> tuple[Config, Arrays, Arrays]:
    """Three heads over keys and values of other widths and another length; one query sees nothing in one head."""
    config = Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=2, key_dim=13, dropout=0.5, **fields)
    rng = np.random.default_rng(1)
    mask = rng.random((2, 3, 4, 6)) < 0.6
    mask[1, 2, 3] = False
    inputs = {"query": normal(2, 4, 7), "key": normal(2, 6, 13), "mask": mask, "bias": normal(2, 3, 4, 6)}
    return config, weights_of(config), inputs | {"keep": rng.random(mask.shape) < 0.5}


def silent(config: Config) -> mha.Config:
    return mha.Config(**{name: getattr(config, name) for name in mha.Config.fields() if hasattr(config, name)})


def test_without_maps_it_is_multi_head_attention(tree: Tree) -> None:
    """The same weights, outputs and gradients."""
    config, w, inputs = cross(mix_scores=False, mix_weights=False, softcap=2.0)
    layer, want = layer_of(tree, config, w), bounded(silent(config), inputs, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    assert set(got) == set(want)
    for name, x in got.items():
        assert within(name, x, want[name]), name


def test_maps_that_are_the_identity_change_nothing(tree: Tree) -> None:
    config, w, inputs = cross()
    w |= {"w_mix_scores": np.eye(3), "w_mix_weights": np.eye(3)}
    layer, want = layer_of(tree, config, w), bounded(silent(config), inputs, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name in set(got) - {"dw_mix_scores", "dw_mix_weights"}:
        assert within(name, got[name], want[name]), name


def test_a_map_from_heads_to_softmaxes_and_its_inverse(tree: Tree) -> None:
    """Head g has softmax order[g]: masks, biases and weights are those of the softmaxes, the output stays."""
    config, w, inputs = cross()
    order = [2, 0, 1]
    w |= {"w_mix_scores": np.eye(3)[order], "w_mix_weights": np.eye(3)[order].T}
    plain = inputs | {name: inputs[name][:, order] for name in ("mask", "bias", "keep")}
    want = bounded(silent(config), plain, w)
    y, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights[:, order], want["out1"]) <= 1


def test_softmaxes_have_no_order(tree: Tree) -> None:
    """More softmaxes than heads, exchanged with both of their maps: the output stays, the weights move along."""
    config = replace(cross()[0], softmax_heads=5, causal=True)
    w, order = weights_of(config), [3, 0, 4, 2, 1]
    inputs = {
        "query": normal(2, 4, 7),
        "key": normal(2, 6, 13),
        "mask": np.random.default_rng(0).random((2, 5, 4, 6)) < 0.7,
    }
    want = bounded(config, inputs, w)
    moved = {"w_mix_scores": w["w_mix_scores"][:, order], "w_mix_weights": w["w_mix_weights"][order]}
    layer = layer_of(tree, config, w | moved)
    y, weights = tree(layer, inputs | {"mask": inputs["mask"][:, order]}, return_weights=True)
    assert weights.shape == (2, 5, 4, 6)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"][:, order]) <= 1


def test_a_key_hidden_in_one_softmax_keeps_its_place_in_the_others(tree: Tree) -> None:
    """Its weight is 0 where it is hidden, exactly, and the rows that see it add up to 1 with it."""
    config, w, inputs = cross()
    _, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
    assert not np.any(weights[~inputs["mask"]])
    assert np.all(weights[inputs["mask"]] > 0)


# Fields ---------------------------------------------------------------------------------------------------------------


def test_each_map_has_its_own_parameter() -> None:
    for fields in ({}, {"mix_scores": False}, {"mix_weights": False}, {"mix_scores": False, "mix_weights": False}):
        names = {f"w_{name}" for name in ("mix_scores", "mix_weights") if fields.get(name, True)}
        found = set(cross(**fields)[0].params())
        assert found & {"w_mix_scores", "w_mix_weights"} == names


@pytest.mark.parametrize("off", ["mix_scores", "mix_weights"])
def test_other_softmaxes_than_heads_need_both_maps(off: str) -> None:
    with pytest.raises(ValueError) as caught:
        replace(Config(d_model=6, num_heads=2, softmax_heads=3), **{off: False})
    assert str(caught.value) == (
        "talking_heads: expected as many softmax_heads as num_heads where scores or weights are not mixed, "
        "got softmax_heads=3, num_heads=2; leave softmax_heads out or mix both"
    )
