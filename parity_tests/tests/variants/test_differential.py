"""Differential attention against scalar loops, and against PyTorch's own attention and norm put together."""

from importlib import import_module
from math import cos, exp, sin, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from attn_np.contract.differential import EXAMPLES, Config
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.kernels.test_rows import ratios
from parity_tests.tests.variants.test_mha import projected, sees
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


@pytest.fixture(params=["numpy", "torch"])
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


# Scalar loops, from equations 1 to 3 of the paper ---------------------------------------------------------------------


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def start(config: Config) -> float:
    return 0.8 - 0.6 * exp(-0.3 * (config.depth - 1)) if config.lambda_init is None else config.lambda_init


def turned(c: Config, words: list[list[float]], places: Any) -> list[list[float]]:
    """Pairs of numbers turn as the hands of clocks do, the further the later they stand."""
    if c.rope_base is None:
        return words
    found = []
    for word, place in zip(words, places, strict=True):
        out, half = list(word), len(word) // 2
        for i in range(half):
            m = place * c.rope_base ** (-i / half)
            first, second = (i, i + half) if c.rope_layout == "half" else (2 * i, 2 * i + 1)
            out[first] = word[first] * cos(m) - word[second] * sin(m)
            out[second] = word[first] * sin(m) + word[second] * cos(m)
        found.append(out)
    return found


def loops(
    config: Config, w: Any, places: Any, query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any
) -> tuple[Any, Any]:
    """Output of one batch row, and the difference of the maps of every head."""

    def part(name: str, words: Any, *at: int) -> list[list[float]]:
        def own(x: Any) -> Any:
            for i in at:
                x = x[i]
            return x

        shift = own(w[f"b_{name}"]) if config.use_bias else None
        return [projected(word, [own(row) for row in w[f"w_{name}"]], shift) for word in words]

    t, s = len(query), len(key)
    if config.lambda_form == "vectors":
        first, second = (exp(dot(w["lambda_q"][r], w["lambda_k"][r])) for r in (0, 1))
        factors = [first - second + start(config)] * config.num_heads
    else:
        factors = w.get("lambda_heads") or w["lambda_layer"] * config.num_heads
    y, weights = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in query], []
    group = config.num_heads // (config.num_kv_heads or config.num_heads)
    for h in range(config.num_heads):
        g = h // group
        v, pair = part("v", value, g), [(part("q", query, h, r), part("k", key, g, r)) for r in (0, 1)]
        pair = [(turned(config, q, places), turned(config, k, places)) for q, k in pair]
        own = []
        for i in range(t):
            maps = []
            for q, k in pair:
                scale = 1 / sqrt(len(q[0])) if config.scale is None else config.scale
                raised = []
                for j in range(s):
                    score = scale * dot(q[i], k[j])
                    score = score if config.softcap is None else config.softcap * tanh(score / config.softcap)
                    shown = mask[h][i][j] and sees(config, i, j, t, s)
                    raised.append(exp(score + bias[h][i][j]) if shown else 0.0)
                maps.append([e / sum(raised) if e else 0.0 for e in raised])
            own.append([a - factors[h] * b for a, b in zip(*maps, strict=True)])
            used = [a / (1 - config.dropout) if on else 0.0 for a, on in zip(own[i], keep[h][i], strict=True)]
            found = [sum(a * word[c] for a, word in zip(used, v, strict=True)) for c in range(len(v[0]))]
            root = sqrt(dot(found, found) / len(found) + config.norm_eps)
            gains = w.get("w_norm", [1.0] * len(found))
            for x, gain, row in zip(found, gains, w["w_o"][h], strict=True):
                share = (1 - start(config)) * x / root * gain if config.use_norm else x
                y[i] = [a + share * b for a, b in zip(y[i], row, strict=True)]
        weights.append(own)
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the difference of the maps of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    places = inputs.get("positions", np.broadcast_to(np.arange(query.shape[1]), query.shape[:2]))
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w = {name: p.tolist() for name, p in params.items()}
    found = [loops(config, w, at.tolist(), *row) for row, at in zip(rows, places, strict=True)]
    return stacked(found, "y", "out1")


# The fast path of each map --------------------------------------------------------------------------------------------


def ends(tree: Tree, name: str, example: str) -> dict[str, float]:
    """Error/bound of a layer whose maps take the fast path in blocks of a few positions."""
    package = tree.package.__name__
    with kernels.blocks(package, kernels.SMALL[name][0]):
        return ratios(name, "differential", example)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_the_fast_path_of_both_maps_keeps_the_bounds(name: str, example: str) -> None:
    found = ends(TREES[name], name, example)
    assert found and all(ratio <= 1 for ratio in found.values()), found


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_fast_path_of_one_map_twice_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = import_module(f"{TREES[name].package.__name__}.frame.call")
    real, maps = room.attend_checked, []

    def first_map_twice(q: Any, k: Any, v: Any, **options: Any) -> Any:
        maps.append((q, k))
        return real(*maps[0], v, **options)

    monkeypatch.setattr(room, "attend_checked", first_map_twice)
    assert not all(ratio <= 1 for ratio in ends(TREES[name], name, "causal").values())


def test_a_gradient_of_the_factor_without_the_second_map_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    room = import_module("attn_np.frame.call")
    real = room.attend_checked

    def without_its_context(*arrays: Any, tape: Any, **options: Any) -> Any:
        found = real(*arrays, tape=tape, **options)
        if tape is not None:
            tape.tap("context", 0.0 * found[0])
        return found

    monkeypatch.setattr(room, "attend_checked", without_its_context)
    found = ends(TREES["numpy"], "numpy", "causal")
    assert {name for name, ratio in found.items() if not ratio <= 1} == {"dlambda_q", "dlambda_k"}


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def cross(**fields: Any) -> tuple[Config, Arrays, Arrays]:
    """Three heads over keys and values of other widths and another length; every query sees a key."""
    config = Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=2, key_dim=13, **fields)
    mask = np.random.default_rng(1).random((2, 3, 4, 6)) < 0.6
    mask[..., 2] = True
    return config, weights_of(config), {"query": normal(2, 4, 7), "key": normal(2, 6, 13), "mask": mask}


@pytest.mark.parametrize("fields", [{"depth": 3}, {"lambda_init": 0.25}, {"lambda_init": 0.0}], ids=str)
def test_torch_attention_twice_and_its_norm(fields: dict[str, Any]) -> None:
    """Forward and every gradient, with einsums of its own around PyTorch's functions."""
    config, w, inputs = cross(**fields)
    mask = torch.from_numpy(inputs["mask"])
    given = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items() if n != "mask"}
    held = {n: torch.from_numpy(p).requires_grad_() for n, p in w.items()}
    q, k = (
        torch.einsum("btd,dhrk->rbhtk", given[word], held[f"w_{n}"]) + held[f"b_{n}"].movedim(1, 0)[:, None, :, None]
        for n, word in (("q", "query"), ("k", "key"))
    )
    v = torch.einsum("bsj,jhv->bhsv", given["key"], held["w_v"]) + held["b_v"][:, None]
    first, second = (scaled_dot_product_attention(q[r], k[r], v, mask) for r in (0, 1))
    l1, l2 = (held["lambda_q"] * held["lambda_k"]).sum(-1).exp()
    init = start(config)
    found = rms_norm(first - (l1 - l2 + init) * second, (2,), held["w_norm"], eps=1e-5) * (1 - init)
    y = torch.einsum("bhtv,hvd->btd", found, held["w_o"]) + held["b_o"]
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **given, **held).items():
        if name == "db_k":  # it moves all scores of a query alike, so that what comes out is rounding
            assert np.all(np.abs(grad - want[name].v) <= want[name].b)
        else:
            assert ratio(grad, want[name]) <= 1, name


# Numbers known beforehand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_init", [0.0, 0.5])
def test_equal_vectors_leave_the_factor_where_it_starts(tree: Tree, lambda_init: float) -> None:
    """And with equal maps the weights of a query add up to 1 - lambda_init, exactly that share of each."""
    config, w, inputs = cross(lambda_init=lambda_init)
    w |= {name: np.repeat(w[name][..., :1, :], 2, axis=-2) for name in ("w_q", "w_k", "b_q", "b_k")}
    w |= {name: np.repeat(w[name][:1], 2, axis=0) for name in ("lambda_q", "lambda_k")}
    layer = layer_of(tree, config, w)
    _, tape = tree.trace(layer, inputs)
    assert tape["lambda_full"].tolist() == [lambda_init]
    assert np.array_equal(tape["probs"], tape["maps"][:, :, 0] - lambda_init * tape["maps"][:, :, 1])
    want = bounded(config, inputs, w)["out1"]
    assert ratio(np.full((2, 3, 4), 1 - lambda_init), np.sum(want, axis=-1)) <= 1


def test_the_factor_starts_from_the_depth() -> None:
    """0.2 in the first layer, towards 0.8 further up."""
    starts = [cross(depth=depth)[0].lambda_init_value() for depth in (1, 2, 3, 100)]
    assert starts == [0.8 - 0.6 * exp(-0.3 * (depth - 1)) for depth in (1, 2, 3, 100)]
    assert starts == sorted(starts)
    assert cross(depth=3, lambda_init=0.25)[0].lambda_init_value() == 0.25


def test_a_query_that_sees_nothing_gives_the_bias(tree: Tree) -> None:
    config, w, inputs = cross()
    inputs["mask"][1, :, 3] = False
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    assert np.array_equal(y[1, 3], w["b_o"])
    assert not weights[1, :, 3].any()
    grads = tree.gradients(layer, inputs, cotangent(y.shape))
    assert not grads["dquery"][1, 3].any()
    assert all(np.isfinite(x).all() for x in grads.values())


# Fields ---------------------------------------------------------------------------------------------------------------


def test_default_widths() -> None:
    """Half of a head of multi-head attention for each map, and values as wide as the whole."""
    shapes = Config(d_model=12, num_heads=2).shapes()
    assert (shapes["w_q"], shapes["w_v"], shapes["w_o"]) == ((12, 2, 2, 3), (12, 2, 6), (2, 6, 12))


# Where the axis of heads stands in what makes keys and values, from the end.
KV_AXES = {"w_k": 3, "b_k": 3, "w_v": 2, "b_v": 2}

REFUSED = {
    "odd": (
        {"d_model": 6},
        "d_model divisible by num_heads and by 2, got d_model=6, num_heads=2; change one of them or set head_dim=",
    ),
    "start": (
        {"lambda_init": 1.0},
        "lambda_init in [0, 1), got 1.0; it is the constant part of the second map's factor",
    ),
    "groups": (
        {"num_kv_heads": 3},
        "num_heads divisible by num_kv_heads, got num_heads=2, num_kv_heads=3; "
        "give every key/value head the same number of query heads",
    ),
    "positions of nothing": (
        {"max_positions": 8},
        "no max_positions without rope_base, got 8; nothing is rotated: leave it out",
    ),
    "positions of two sequences": (
        {"rope_base": 10.0, "key_dim": 3},
        "no key_dim with rope_base, got 3; rotary positions are for self-attention: leave it out",
    ),
    "depth": ({"depth": 0}, "depth to be an integer of at least 1, got 0; set depth="),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_cannot_be_right(tree: Tree, why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        tree.package.build("differential", **({"d_model": 8, "num_heads": 2} | fields))
    assert str(caught.value) == f"differential: expected {words}"


def test_rotary_positions_are_for_self_attention(tree: Tree) -> None:
    """Keys of another sequence have positions of their own, and a call does not pass them."""
    config = Config(d_model=8, num_heads=2, rope_base=10.0)
    layer = layer_of(tree, config, weights_of(config))
    with pytest.raises(ValueError, match="differential: expected no key with rope_base, got some; rotary positions"):
        tree(layer, {"query": normal(1, 3, 8), "key": normal(1, 5, 8)})


def test_shared_heads_are_equal_heads(tree: Tree) -> None:
    """Every query head with a copy of the keys and values of its group, neighbours sharing one: the same numbers."""
    fields: dict[str, Any] = {"d_model": 24, "num_heads": 6, "causal": True, "rope_base": 50.0, "norm_weight": False}
    config = Config(num_kv_heads=3, **fields)
    w, inputs = weights_of(config), {"query": normal(2, 5, 24)}
    copies = {name: np.repeat(w[name], 2, axis=w[name].ndim - n) for name, n in KV_AXES.items()}
    (y,) = tree(layer_of(tree, config, w), inputs)
    assert ratio(y, bounded(Config(**fields), inputs, w | copies)["y"]) <= 1
