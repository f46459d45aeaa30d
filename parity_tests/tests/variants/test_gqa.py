"""Grouped-query attention against scalar loops, multi-head attention, and PyTorch's own grouped heads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np.contract import mha
from attn_np.contract.gqa import Config
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


@pytest.fixture(params=["numpy", "torch"])
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


# Scalar loops, from section 2.2 of the paper --------------------------------------------------------------------------


def loops(config: Config, w: Any, query: Any, key: Any, value: Any, *given: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row: the query heads in G groups, each with one key head and one value head."""

    def part(name: str, words: Any, n: int) -> list[list[float]]:
        return [
            projected(word, [row[n] for row in w[f"w_{name}"]], w[f"b_{name}"][n] if config.use_bias else None)
            for word in words
        ]

    heads, h = [], 0
    for g in range(config.num_kv_heads):
        k, v = part("k", key, g), part("v", value, g)
        memory = [(k[g], v[g]) for k, v in zip(w.get("memory_k", ()), w.get("memory_v", ()), strict=True)]
        for _ in range(config.num_heads // config.num_kv_heads):
            heads.append(head(config, part("q", query, h), k, v, *(x[h] for x in given), memory=memory))
            h += 1
    w_o = [row for own in w["w_o"] for row in own]
    joined = [[x for found, _ in heads for x in found[i]] for i in range(len(query))]
    return [projected(x, w_o, w.get("b_o")) for x in joined], [weights for _, weights in heads]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every query head."""
    query = inputs["query"]
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    shape = (query.shape[0], config.num_heads, query.shape[1], key.shape[1])
    config, rows = each_row(config, inputs, (query, key, value), shape)
    w = {name: p.tolist() for name, p in params.items()}
    return stacked([loops(config, w, *row) for row in rows], "y", "out1")


# Identities -----------------------------------------------------------------------------------------------------------


def cross(num_kv_heads: int) -> tuple[Config, Arrays, Arrays]:
    """Six heads over keys and values of other widths and another length; one query sees nothing in one head."""
    config = Config(
        d_model=7, num_heads=6, num_kv_heads=num_kv_heads, head_dim=5, value_head_dim=2, key_dim=13, dropout=0.5
    )
    rng = np.random.default_rng(1)
    mask = rng.random((2, 6, 4, 11)) < 0.6
    mask[1, 2, 3] = False
    inputs = {"query": normal(2, 4, 7), "key": normal(2, 11, 13), "mask": mask, "bias": normal(2, 6, 4, 11)}
    return config, weights_of(config), inputs | {"keep": rng.random(mask.shape) < 0.5}


def ungrouped(config: Config) -> mha.Config:
    return mha.Config(**{name: getattr(config, name) for name in mha.Config.fields() if hasattr(config, name)})


def test_as_many_heads_of_keys_as_of_queries_are_multi_head_attention(tree: Tree) -> None:
    """The same weights, outputs and gradients."""
    config, w, inputs = cross(6)
    layer, want = layer_of(tree, config, w), bounded(ungrouped(config), inputs, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    assert set(got) == set(want)
    for name, x in got.items():
        assert within(name, x, want[name]), name


@pytest.mark.parametrize("memory_keys", [None, 2])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_a_shared_head_is_a_head_repeated_for_its_group(tree: Tree, num_kv_heads: int, memory_keys: int | None) -> None:
    """Multi-head attention with equal heads in a group; the gradient of the shared one is the sum of theirs."""
    config, w, inputs = cross(num_kv_heads)
    config = replace(config, memory_keys=memory_keys)
    w = w if memory_keys is None else weights_of(config)
    r = 6 // num_kv_heads
    axes = {"w_k": 1, "w_v": 1, "b_k": 0, "b_v": 0} | ({} if memory_keys is None else {"memory_k": 1, "memory_v": 1})
    repeated = {name: np.repeat(p, r, axes[name]) if name in axes else p for name, p in w.items()}
    layer, want = layer_of(tree, config, w), bounded(ungrouped(config), inputs, repeated)
    for name, axis in axes.items():
        d = want[f"d{name}"]
        parts = d.reshape(*d.shape[:axis], num_kv_heads, r, d.shape[-1])
        want[f"d{name}"] = np.sum(parts, axis=axis + 1)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, x in got.items():
        assert within(name, x, want[name]), name


def test_heads_of_a_group_have_no_order_and_groups_go_together(tree: Tree) -> None:
    """Query heads exchanged within a group give the same; exchanged between groups they do not."""
    config, w, inputs = cross(3)
    want = bounded(config, inputs, w)["y"]
    for order, same in ([1, 0, 2, 3, 5, 4], True), ([2, 1, 0, 3, 4, 5], False):
        moved = w | {name: w[name].take(order, axis) for name, axis in (("w_q", 1), ("b_q", 0), ("w_o", 0))}
        shown = inputs | {name: inputs[name][:, order] for name in ("mask", "bias", "keep")}
        assert (ratio(tree(layer_of(tree, config, moved), shown)[0], want) <= 1) == same


# PyTorch's own function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_torch_scaled_dot_product_attention(num_kv_heads: int) -> None:
    """Forward and every gradient of its `enable_gqa`, with einsums of its own around."""
    config, w, inputs = cross(num_kv_heads)
    del inputs["keep"], inputs["mask"]
    given = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items()}
    held = {n: torch.from_numpy(p).requires_grad_() for n, p in w.items()}
    q, k, v = (
        torch.einsum("btd,dhk->bhtk", given[word], held[f"w_{n}"]) + held[f"b_{n}"][:, None]
        for n, word in (("q", "query"), ("k", "key"), ("v", "key"))
    )
    found = scaled_dot_product_attention(q, k, v, given["bias"], enable_gqa=True)
    y = torch.einsum("bhtv,hvd->btd", found, held["w_o"]) + held["b_o"]
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **given, **held).items():
        assert within(name, grad, want[name]), name


# Fields and the cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_the_cache_holds_the_shared_heads_only(num_kv_heads: int) -> None:
    config = Config(d_model=12, num_heads=6, num_kv_heads=num_kv_heads, value_head_dim=5, causal=True)
    arrays = layer_of(TREES["numpy"], config, weights_of(config)).init_cache(2, 7).arrays
    assert {name: x.shape for name, x in arrays.items()} == {"k": (2, 8, num_kv_heads, 2), "v": (2, 8, num_kv_heads, 5)}


REFUSED = {
    "uneven": (
        {"num_heads": 6, "num_kv_heads": 4},
        "num_heads divisible by num_kv_heads, got num_heads=6, num_kv_heads=4; "
        "give every key/value head the same number of query heads",
    ),
    "more": (
        {"num_heads": 2, "num_kv_heads": 4},
        "num_heads divisible by num_kv_heads, got num_heads=2, num_kv_heads=4; "
        "give every key/value head the same number of query heads",
    ),
    "none": (
        {"num_heads": 2, "num_kv_heads": 0},
        "num_kv_heads to be an integer of at least 1, got 0; set num_kv_heads=",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        replace(Config(d_model=12, num_heads=1, num_kv_heads=1), **fields)
    assert str(caught.value) == f"gqa: expected {words}"
