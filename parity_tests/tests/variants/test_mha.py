"""Multi-head attention against scalar loops, PyTorch's own functions, and attention with one head at a time."""

from dataclasses import replace
from math import exp, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import linear, scaled_dot_product_attention

from attn_np.contract import self_attention
from attn_np.contract._heads import CrossAttentionConfig
from attn_np.contract.mha import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.judge.cases import Case
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    disagreement,
    each_row,
    layer_of,
    ratio,
    stacked,
    torch_gradients,
    weights_of,
)


def within(name: str, got: np.ndarray, want: ErrArray) -> bool:
    """The bias of the keys moves all scores of a query alike, so its gradient is 0 and what comes out is rounding.

    No bound can be small against that: for this one array only the bound itself is asked.
    """
    if name == "db_k":
        return got.shape == want.shape and bool(np.all(np.abs(got - want.v) <= want.b))
    return ratio(got, want) <= 1


def padding(lengths: list[int], s: int) -> np.ndarray:
    """(b, 1, 1, s): the first positions of each row are words, for every head and query."""
    return (np.arange(s) < np.array(lengths)[:, None])[:, None, None]


# Scalar loops, from section 3.2.2 of the paper ------------------------------------------------------------------------


def projected(x: list[float], w: list[list[float]], b: list[float] | None) -> list[float]:
    return [
        sum(a * row[c] for a, row in zip(x, w, strict=True)) + (0.0 if b is None else b[c]) for c in range(len(w[0]))
    ]


def sees(config: CrossAttentionConfig, i: int, j: int, t: int, s: int) -> bool:
    """Query i, standing at i + s - t, sees key j."""
    left, right = config.window or (None, None)
    place = i + s - t
    if config.causal and j > place:
        return False
    return (left is None or j >= place - left) and (right is None or j <= place + right)


def head(config: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any, keep: Any, memory: Any = ()) -> tuple[Any, Any]:
    """What one head finds for every query, and its weights on the keys; the memory is pairs of a key and a value."""
    scale = 1 / sqrt(len(q[0])) if config.scale is None else config.scale

    def capped(asked: list[float], answer: list[float]) -> float:
        score = scale * sum(a * b for a, b in zip(asked, answer, strict=True))
        return score if config.softcap is None else config.softcap * tanh(score / config.softcap)

    rows, found, weights = [], [], []
    for i, asked in enumerate(q):
        rows.append([])
        for j, answer in enumerate(k):
            shown = mask[i][j] and sees(config, i, j, len(q), len(k))
            rows[i].append(exp(capped(asked, answer) + bias[i][j]) if shown else 0.0)
    for i, (asked, raised) in enumerate(zip(q, rows, strict=True)):
        # A query without another key is 0: it weighs the memory equally.
        learned = [exp(capped(asked, own_key)) if any(raised) else 1.0 for own_key, _ in memory]
        whole = sum(raised) + sum(learned)
        over_queries = getattr(config, "normalize_over", "keys") == "queries"
        sums = [sum(row[j] for row in rows) if over_queries else whole for j in range(len(k))]
        alpha = [e / rivals if e else 0.0 for e, rivals in zip(raised, sums, strict=True)]
        used = [a / (1 - config.dropout) if kept else 0.0 for a, kept in zip(alpha, keep[i], strict=True)]
        context = [sum((a * word[c] for a, word in zip(used, v, strict=True)), 0.0) for c in range(len(v[0]))]
        for e, (_, own_value) in zip(learned, memory, strict=True):
            context = [x + e / whole * y for x, y in zip(context, own_value, strict=True)]
        found.append(context)
        weights.append(alpha)
    return found, weights


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, *given: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row: MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W^O."""
    heads = []
    for h in range(config.num_heads):
        parts = []
        for name, words in zip("qkv", (query, key, value), strict=True):
            own = [row[h] for row in w[f"w_{name}"]]
            shift = w[f"b_{name}"][h] if config.use_bias else None
            parts.append([projected(word, own, shift) for word in words])
        memory = [(k[h], v[h]) for k, v in zip(w.get("memory_k", ()), w.get("memory_v", ()), strict=True)]
        heads.append(head(config, *parts, *(part[h] for part in given), memory=memory))
    w_o = [row for own in w["w_o"] for row in own]
    joined = [[x for found, _ in heads for x in found[i]] for i in range(len(query))]
    return [projected(x, w_o, w.get("b_o")) for x in joined], [weights for _, weights in heads]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


@pytest.mark.parametrize("fields", [{"dropout": 0.25}, {"causal": True, "use_bias": False}])
def test_scalar_loops_with_a_memory(fields: dict[str, Any]) -> None:
    """It is not dropped with the keys, and seen by queries that see no key."""
    config = replace(Config(d_model=7, head_dim=5, num_heads=3, memory_keys=2), **fields)
    assert not disagreement(witness, Case("mha", "", "full", "float64", given=config))


def test_without_keys_the_memory_is_weighed_equally(tree: Tree) -> None:
    """Whether a mask says so or there is nothing to mask: the mean of its values, and no gradient of the query."""
    config = Config(d_model=6, num_heads=2, memory_keys=3)
    w, query, key = weights_of(config), normal(1, 2, 6), np.zeros((1, 0, 6))
    layer, masked = layer_of(tree, config, w), {"query": query, "key": key, "mask": np.ones((1, 1, 2, 0), bool)}
    want = np.einsum("hv,hvo->o", w["memory_v"].mean(axis=0), w["w_o"]) + w["b_o"]
    for inputs in ({"query": query, "key": key}, masked):
        (y,) = tree(layer, inputs)
        assert (abs(y - want) <= 64 * np.finfo(float).eps * abs(want).max()).all()
        assert not tree.gradients(layer, inputs, cotangent(y.shape))["dquery"].any()


def test_keys_share_themselves_out_among_the_queries(tree: Tree) -> None:
    """Over the queries the weights of a key add up to 1 where a query sees it; gradients too."""
    config, w, inputs = cross()
    config = replace(config, normalize_over="queries", softcap=1.5)
    inputs["mask"][0, 1, :, 2] = False
    want, layer = bounded(config, inputs, w), layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    totals = np.sum(want["out1"], axis=-2)
    assert ratio(inputs["mask"].any(axis=-2), totals) <= 1
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name


def test_what_does_not_go_with_a_softmax_over_the_queries(tree: Tree) -> None:
    """Later queries would change the weights of earlier ones, so there is no cache, and a memory is not shared out."""
    layer = tree.package.build("mha", d_model=6, num_heads=2, causal=True, normalize_over="queries")
    with pytest.raises(ValueError, match="mha: expected a layer that decodes, got"):
        layer.init_cache(1, 4)
    with pytest.raises(ValueError, match="mha: expected normalize_over='keys' with memory_keys=, got 'queries'; leave"):
        tree.package.build("mha", d_model=6, num_heads=2, memory_keys=1, normalize_over="queries")


def test_a_memory_is_not_cached(tree: Tree) -> None:
    """Steps give what the full pass gives, and the cache holds the keys of the call alone."""
    config = Config(d_model=6, num_heads=2, causal=True, window=(2, 0), memory_keys=3)
    w, x = weights_of(config), normal(2, 5, 6)
    layer, want = layer_of(tree, config, w), bounded(config, {"query": x}, w)["y"]
    cache = layer.init_cache(2, 5)
    for start, stop in ((0, 3), (3, 5)):
        y, cache = layer.step(tree.array(x[:, start:stop]), cache)
        assert ratio(tree.numpy(y), want[:, start:stop]) <= 1
    assert cache.arrays["k"].shape[1] <= 6


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_bias", [True, False])
def test_one_head_is_self_attention(tree: Tree, use_bias: bool) -> None:
    """Outputs and gradients of `self_attention` with an output projection, with a head axis of size 1 more."""
    fields: Any = {"d_model": 7, "head_dim": 5, "value_head_dim": 3, "window": (2, None), "use_bias": use_bias}
    config, alone = Config(num_heads=1, **fields), self_attention.Config(use_output=True, **fields)
    w = weights_of(config)
    inputs = {"query": normal(2, 11, 7), "mask": np.random.default_rng(0).random((2, 1, 11, 11)) < 0.7}
    layer = layer_of(tree, config, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 11, 7)))
    headless = {name: x.reshape(alone.shapes()[name]) for name, x in w.items()}
    want = bounded(alone, inputs | {"mask": inputs["mask"][:, 0]}, headless)
    for name, x in got.items():
        assert within(name, x.reshape(want[name].shape), want[name]), name


def test_two_heads_that_share_nothing_are_two_layers(tree: Tree) -> None:
    """With block-diagonal weights each half of the words passes through a head of its own."""
    config, half = Config(d_model=10, num_heads=2, head_dim=3, causal=True), Config(d_model=5, num_heads=1, head_dim=3)
    half = replace(half, causal=True)
    parts = [weights_of(half, seed) for seed in (1, 2)]
    w = {name: np.zeros(shape) for name, shape in config.shapes().items()}
    for h, part in enumerate(parts):
        mine = slice(5 * h, 5 * h + 5)
        for name in ("w_q", "w_k", "w_v"):
            w[name][mine, h] = part[name][:, 0]
        w["w_o"][h, :, mine], w["b_o"][mine] = part["w_o"][0], part["b_o"]
        for name in ("b_q", "b_k", "b_v"):
            w[name][h] = part[name][0]
    x, dy = normal(2, 7, 10), cotangent((2, 7, 10))
    want = bounded(config, {"query": x}, w)
    layers = [layer_of(tree, half, part) for part in parts]
    halves = [{"query": np.ascontiguousarray(part)} for part in np.split(x, 2, axis=-1)]
    outputs = [tree(layer, part, return_weights=True) for layer, part in zip(layers, halves, strict=True)]
    grads = [
        tree.gradients(layer, part, np.ascontiguousarray(g))["dquery"]
        for layer, part, g in zip(layers, halves, np.split(dy, 2, axis=-1), strict=True)
    ]
    assert ratio(np.concatenate([y for y, _ in outputs], axis=-1), want["y"]) <= 1
    assert ratio(np.concatenate([weights for _, weights in outputs], axis=1), want["out1"]) <= 1
    assert ratio(np.concatenate(grads, axis=-1), want["dquery"]) <= 1
    y, weights = tree(layer_of(tree, config, w), {"query": x}, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"]) <= 1


def cross() -> tuple[Config, Arrays, Arrays]:
    """Three heads over keys and values of other widths and another length; one query sees nothing in one head."""
    config = Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=11, key_dim=13, value_dim=2)
    mask = np.random.default_rng(1).random((2, 3, 4, 6)) < 0.6
    mask[1, 2, 3] = False
    inputs = {"query": normal(2, 4, 7), "key": normal(2, 6, 13), "value": normal(2, 6, 2), "mask": mask}
    return config, weights_of(config), inputs


def test_heads_have_no_order(tree: Tree) -> None:
    """The output sums over the heads: with their weights and masks exchanged it stays, and the weights move along."""
    config, w, inputs = cross()
    order = [2, 0, 1]
    moved = {name: p if name == "b_o" else p.take(order, 0 if name[0] == "b" else 1) for name, p in w.items()}
    moved["w_o"] = w["w_o"][order]
    want = bounded(config, inputs, w)
    shown = inputs | {"mask": inputs["mask"][:, order]}
    y, weights = tree(layer_of(tree, config, moved), shown, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"][:, order]) <= 1


def test_keys_have_no_order(tree: Tree) -> None:
    """Keys shuffled with their values and their mask change nothing; keys shuffled alone do."""
    config, w, inputs = cross()
    order, want = [3, 0, 5, 2, 1, 4], bounded(config, inputs, w)
    layer = layer_of(tree, config, w)
    shuffled = inputs | {name: inputs[name][:, order] for name in ("key", "value")}
    shuffled["mask"] = inputs["mask"][..., order]
    y, weights = tree(layer, shuffled, return_weights=True)
    assert ratio(y, want["y"]) <= 1
    assert ratio(weights, want["out1"][..., order]) <= 1
    for left in ("key", "value", "mask"):
        assert ratio(tree(layer, shuffled | {left: inputs[left]})[0], want["y"]) > 1, left


def test_weights_of_a_head_add_up_to_one_or_zero(tree: Tree) -> None:
    """Exactly 0 where a head shows a query no key; what the other heads see of it does not matter."""
    config, w, inputs = cross()
    totals = np.sum(bounded(config, inputs, w)["out1"], axis=-1)
    _, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
    some = inputs["mask"].any(axis=-1)
    assert np.sum(~some) == 1
    assert not np.any(weights[~inputs["mask"]])
    assert ratio(some, totals) <= 1
    assert ratio(weights.sum(axis=-1), totals) <= 1


# Shapes that tutorials print ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "lengths", "sizes"),
    [
        (Config(d_model=10, num_heads=3, head_dim=10), None, (2, 4)),
        (Config(d_model=512, num_heads=4), [135, 1, 70, 134, 7], (5, 135)),
        (Config(d_model=768, num_heads=12, head_dim=64), [9, 5], (2, 9)),
    ],
    ids=["full-width-heads", "long", "base"],
)
def test_shapes(config: Config, lengths: list[int] | None, sizes: tuple[int, int]) -> None:
    (b, t), h = sizes, config.num_heads
    w, inputs = weights_of(config), {"query": normal(b, t, config.d_model)}
    if lengths is not None:
        inputs["mask"] = padding(lengths, t)[:, 0][:, None]  # (b, 1, s) gets its axis of heads
        assert inputs["mask"].shape == (b, 1, 1, t)
    want = bounded(config, inputs, w)
    x = torch.from_numpy(inputs["query"])
    q, k, v = (per_head(linear(x, rows(w[f"w_{n}"]), torch.from_numpy(w[f"b_{n}"].ravel())), h) for n in "qkv")
    mask = None if lengths is None else torch.from_numpy(inputs["mask"])
    assert ratio(joined(scaled_dot_product_attention(q, k, v, mask), w), want["y"]) <= 1
    for name, tree in TREES.items():
        y, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
        assert y.shape == (b, t, config.d_model), name
        assert weights.shape == (b, h, t, t), name
        assert ratio(y, want["y"]) <= 1, name
        assert ratio(weights, want["out1"]) <= 1, name
        if lengths is not None:
            assert not np.any(weights[~np.broadcast_to(inputs["mask"], weights.shape)]), name


def test_a_mask_without_its_axis_of_heads_is_refused(tree: Tree) -> None:
    """(b, 1, s) would line b up with the heads."""
    config = Config(d_model=6, num_heads=2)
    layer, mask = layer_of(tree, config, weights_of(config)), padding([5, 3, 4], 5)[:, 0]
    with pytest.raises(ValueError, match=r"mha: expected mask .*\(3, 1, 5\)"):
        tree(layer, {"query": normal(3, 5, 6), "mask": mask})


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def rows(w: np.ndarray) -> torch.Tensor:
    """`d h k` as `nn.Linear` keeps it: (h k, d)."""
    return torch.from_numpy(np.ascontiguousarray(w.reshape(len(w), -1).T))


def per_head(x: torch.Tensor, h: int) -> torch.Tensor:
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def joined(found: torch.Tensor, w: Arrays) -> torch.Tensor:
    w_o = w["w_o"].reshape(-1, w["w_o"].shape[-1])
    return linear(found.transpose(1, 2).flatten(2), rows(w_o), torch.from_numpy(w["b_o"]))


@pytest.mark.parametrize("masked", ["mask", "bias", "causal"])
@pytest.mark.parametrize("scale", [None, 0.375])
def test_torch_scaled_dot_product_attention(masked: str, scale: float | None) -> None:
    """Forward and every gradient, with einsums of its own around PyTorch's function."""
    config, w, inputs = cross()
    config = replace(config, scale=scale, causal=masked == "causal")
    mask = torch.from_numpy(inputs.pop("mask"))
    inputs |= {} if masked == "causal" else {masked: mask.numpy() if masked == "mask" else normal(2, 3, 4, 6)}
    given = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items() if n != "mask"}
    held = {n: torch.from_numpy(p).requires_grad_() for n, p in w.items()}
    q, k, v = (
        torch.einsum("btd,dhk->bhtk", given[word], held[f"w_{n}"]) + held[f"b_{n}"][:, None]
        for n, word in (("q", "query"), ("k", "key"), ("v", "value"))
    )
    hidden = {"mask": mask, "bias": given.get("bias"), "causal": causal_lower_right(4, 6)}[masked]
    found = scaled_dot_product_attention(q, k, v, hidden, scale=scale)
    y = torch.einsum("bhtv,hvd->btd", found, held["w_o"]) + held["b_o"]
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **given, **held).items():
        assert within(name, grad, want[name]), name


def multihead(config: Config, w: Arrays) -> torch.nn.MultiheadAttention:
    """PyTorch's layer with our weights. Where all widths are equal it packs the three projections into one."""
    n = config.sizes()
    theirs = torch.nn.MultiheadAttention(
        config.d_model,
        config.num_heads,
        bias=config.use_bias,
        add_bias_kv=config.memory_keys is not None,
        kdim=n["i"],
        vdim=n["j"],
        batch_first=True,
    ).double()
    first = [rows(w[f"w_{name}"]) for name in "qkv"]
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat(first))
        else:
            for name, p in zip("qkv", first, strict=True):
                getattr(theirs, f"{name}_proj_weight").copy_(p)
        theirs.out_proj.weight.copy_(rows(w["w_o"].reshape(-1, config.d_model)))
        if config.use_bias:
            theirs.in_proj_bias.copy_(torch.from_numpy(np.concatenate([w[f"b_{n}"].ravel() for n in "qkv"])))
            theirs.out_proj.bias.copy_(torch.from_numpy(w["b_o"]))
        if theirs.bias_k is not None and theirs.bias_v is not None:
            theirs.bias_k.copy_(torch.from_numpy(w["memory_k"].reshape(1, 1, -1)))
            theirs.bias_v.copy_(torch.from_numpy(w["memory_v"].reshape(1, 1, -1)))
    return theirs


def their_gradients(theirs: torch.nn.MultiheadAttention, y: torch.Tensor, config: Config, **given: Any) -> Arrays:
    """By our names and in our layouts."""
    found = torch_gradients(y, **given, **dict(theirs.named_parameters()))
    shapes = config.shapes()
    if "din_proj_weight" in found:
        parts = np.split(found.pop("din_proj_weight"), 3)
        found |= {f"d{n}_proj_weight": part for n, part in zip("qkv", parts, strict=True)}
    named = {f"dw_{n}": found.pop(f"d{n}_proj_weight").T for n in "qkv"} | {"dw_o": found.pop("dout_proj.weight").T}
    if config.use_bias:
        parts = np.split(found.pop("din_proj_bias"), 3)
        named |= {f"db_{n}": part for n, part in zip("qkv", parts, strict=True)}
        named["db_o"] = found.pop("dout_proj.bias")
    if config.memory_keys is not None:
        named |= {f"dmemory_{n}": found.pop(f"dbias_{n}") for n in "kv"}
    return found | {name: g.reshape(shapes[name[1:]]) for name, g in named.items()}


@pytest.mark.parametrize("how", ["attn_mask", "key_padding_mask", "float"])
@pytest.mark.parametrize(
    "config",
    [
        Config(d_model=6, num_heads=2),
        Config(d_model=6, num_heads=3, key_dim=13, value_dim=5),
        Config(d_model=6, num_heads=2, use_bias=False),
        Config(d_model=6, num_heads=2, memory_keys=1),
    ],
    ids=["packed", "cross", "no-bias", "memory"],
)
def test_torch_multihead_attention(config: Config, how: str) -> None:
    """Outputs, weights of every head and all gradients; a boolean mask is True where PyTorch hides."""
    w, n = weights_of(config), config.sizes()
    inputs = {"query": normal(2, 5, 6), "key": normal(2, 7, n["i"]), "value": normal(2, 7, n["j"])}
    given = {name: torch.from_numpy(x).requires_grad_() for name, x in inputs.items()}
    if how == "key_padding_mask":
        inputs["mask"] = padding([7, 4], 7)
        hidden = {how: torch.from_numpy(~inputs["mask"][:, 0, 0])}
    elif how == "attn_mask":
        inputs["mask"] = np.random.default_rng(2).random((2, n["h"], 5, 7)) < 0.6
        inputs["mask"][..., 3] = config.memory_keys is None  # beside a memory a query may see no other key
        inputs["mask"][:, :, 1] &= config.memory_keys is None
        hidden = {how: torch.from_numpy(~inputs["mask"]).flatten(0, 1)}
    else:
        inputs["bias"] = normal(2, n["h"], 5, 7)
        hidden = {"attn_mask": torch.from_numpy(inputs["bias"]).flatten(0, 1)}
    theirs = multihead(config, w)
    y, weights = theirs(*given.values(), **hidden, need_weights=True, average_attn_weights=False)
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights[..., :7].detach(), want["out1"]) <= 1
    grads = their_gradients(theirs, y, config, **given)
    assert set(grads) == {name for name in want if name[0] == "d" and name != "dbias"}
    for name, grad in grads.items():
        assert within(name, grad, want[name]), name
    if how == "attn_mask":
        mistaken = bounded(config, inputs | {"mask": ~inputs["mask"]}, w)
        assert ratio(y.detach(), mistaken["y"]) > 1
