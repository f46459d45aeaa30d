"""Latent attention against scalar loops, its two forms against each other, and the heads that its latents stand for."""

from dataclasses import replace
from importlib import import_module
from math import exp, inf, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import rotary
from attn_np.contract.mla import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal
from parity_tests.tests.variants.test_rotary import published, turned
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

# Scalar loops, from equations 37 to 47 --------------------------------------------------------------------------------


def times(x: list[float], w: list[list[float]], shift: list[float] | None = None) -> list[float]:
    y = [sum(a * row[c] for a, row in zip(x, w, strict=True)) for c in range(len(w[0]))]
    return y if shift is None else [a + b for a, b in zip(y, shift, strict=True)]


def normed(x: list[float], weight: list[float], eps: float) -> list[float]:
    size = sqrt(sum(a * a for a in x) / len(x) + eps)
    return [a / size * g for a, g in zip(x, weight, strict=True)]


def chosen_keys(c: Config, w: Any, x: Any, asked: Any, places: Any, thetas: list[float], sees: Any) -> list[set[int]]:
    """The keys that each position attends to by the indexer, equations 1 and 2 of DeepSeek-V3.2, one by one."""
    turning = replace(c, rope_layout=c.index_rope_layout)

    def rotated(word: list[float], place: Any) -> list[float]:
        return turned(turning, word[: c.rope_dim], place, thetas) + word[c.rope_dim :]

    keys = []
    for word, place in zip(x, places, strict=True):
        key = times(word, w["w_index_k"])
        mean = sum(key) / len(key)
        unit = normed([a - mean for a in key], w["w_index_norm"], c.index_norm_eps)
        keys.append(rotated([a + b for a, b in zip(unit, w["b_index_norm"], strict=True)], place))
    choices = []
    for i, word in enumerate(x):
        heads, scores = times(word, w["w_index_heads"]), [0.0] * len(x)
        for r, weight in enumerate(heads):
            query = rotated(times(asked[i], [row[r] for row in w["w_index_q"]]), places[i])
            for j, key in enumerate(keys):
                scores[j] += weight * max(0.0, sum(a * b for a, b in zip(query, key, strict=True)))
        seen = [j for j in range(len(x)) if sees(i, j)]
        choices.append(set(sorted(seen, key=lambda j: (-scores[j], j))[: c.index_keys]))
    return choices


def loops(
    c: Config, w: Any, x: Any, places: Any, thetas: list[float], mask: Any, bias: Any, keep: Any
) -> tuple[Any, Any]:
    """Output and weights of one batch row: every head's keys and values are made, one number at a time."""
    t, n = len(x), c.nope_dim
    scale = 1 / sqrt(c.nope_dim + c.rope_dim) if c.scale is None else c.scale
    y, weights = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in x], []
    asked = x
    if c.q_rank is not None:
        asked = [normed(times(word, w["w_dq"], w.get("b_dq")), w["w_q_norm"], c.norm_eps) for word in x]
    latents = [normed(times(word, w["w_dkv"], w.get("b_dkv")), w["w_kv_norm"], c.norm_eps) for word in x]
    keys = [times(word, w["w_k_rot"], w.get("b_k_rot")) for word in x]
    shared = [turned(c, key, m, thetas) for key, m in zip(keys, places, strict=True)]
    chosen = [set(range(t))] * t
    if c.index_keys is not None:

        def sees(i: int, j: int) -> bool:
            return any(mask[h][i][j] and bias[h][i][j] > -inf for h in range(c.num_heads)) and not (c.causal and j > i)

        chosen = chosen_keys(c, w, x, asked, places, thetas, sees)
    for h in range(c.num_heads):
        w_q, w_uk, w_uv = ([row[h] for row in w[name]] for name in ("w_q", "w_uk", "w_uv"))
        q = [times(word, w_q) for word in asked]
        q = [word[:n] + turned(c, word[n:], m, thetas) for word, m in zip(q, places, strict=True)]
        k = [times(latent, w_uk) + key for latent, key in zip(latents, shared, strict=True)]
        v = [times(latent, w_uv) for latent in latents]
        alphas = []
        for i in range(t):
            raised = []
            for j in range(t):
                score = scale * sum(a * b for a, b in zip(q[i], k[j], strict=True)) + bias[h][i][j]
                raised.append(exp(score) if mask[h][i][j] and j in chosen[i] and not (c.causal and j > i) else 0.0)
            alphas.append([e / sum(raised) if e else 0.0 for e in raised])
            used = [a / (1 - c.dropout) * kept for a, kept in zip(alphas[i], keep[h][i], strict=True)]
            context = times(used, v)
            y[i] = [total + part for total, part in zip(y[i], times(context, w["w_o"][h]), strict=True)]
        weights.append(alphas)
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    places = inputs.get("positions", np.broadcast_to(np.arange(t), (b, t)))
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    length = int(places.max()) + 1 if "positions" in inputs else t
    thetas = published(config, config.rope_dim, length or 0)
    places = places if places.ndim == 2 else np.moveaxis(places, 0, -1)
    found = [loops(config, w, row[0], at.tolist(), thetas, *row[1:]) for row, at in zip(rows, places, strict=True)]
    return stacked(found, "y", "out1")


# Two forms ------------------------------------------------------------------------------------------------------------


def small(**fields: Any) -> Config:
    widths: dict[str, Any] = {"kv_rank": 5, "nope_dim": 2, "rope_dim": 4, "value_head_dim": 7}
    return Config(d_model=11, num_heads=3, **widths | fields)


@pytest.mark.parametrize("q_rank", [None, 13])
def test_absorbed_is_expanded(tree: Tree, q_rank: int | None) -> None:
    """The same weights give the same outputs, weights and gradients."""
    config = small(q_rank=q_rank, causal=True, dropout=0.5, max_positions=31)
    other, w, rng = replace(config, absorbed=True), weights_of(config), np.random.default_rng(0)
    inputs = {"query": normal(2, 5, 11), "mask": rng.random((2, 3, 5, 5)) < 0.7, "keep": rng.random((2, 3, 5, 5)) < 0.5}
    inputs |= {"bias": normal(2, 3, 5, 5), "positions": rng.integers(0, 31, (2, 5))}
    layer = layer_of(tree, other, w)
    y, probs = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": probs} | tree.gradients(layer, inputs, cotangent(y.shape))
    want, limit = bounded(config, inputs, w), bounded(other, inputs, w)
    assert set(got) == set(want) == set(limit)
    for name, x in got.items():
        assert ratio(x, ErrArray(want[name].v, want[name].b + limit[name].b)) <= 1, name


@pytest.mark.parametrize("absorbed", [False, True])
def test_the_cache_is_the_latent_and_one_key(absorbed: bool) -> None:
    """So many numbers for each position, whatever the number of heads; a form goes on from the other's cache."""
    config = small(absorbed=absorbed, causal=True)
    w, x = weights_of(config), normal(2, 5, 11)
    for tree in TREES.values():
        layer, other = layer_of(tree, config, w), layer_of(tree, replace(config, absorbed=not absorbed), w)
        cache = layer.init_cache(2, 5, dtype="float64")
        assert {name: tuple(a.shape)[2:] for name, a in cache.arrays.items()} == {"latent": (5,), "k_rot": (4,)}
        first, cache = layer.step(tree.array(x[:, :3]), cache)
        last, cache = other.step(tree.array(x[:, 3:]), cache)
        want = bounded(config, {"query": x}, w)["y"]
        found = np.concatenate([tree.numpy(first), tree.numpy(last)], axis=1)
        limit = bounded(replace(config, absorbed=not absorbed), {"query": x}, w)["y"]
        assert ratio(found, ErrArray(want.v, want.b + limit.b)) <= 1, tree.name


def test_without_a_base_nothing_is_rotated(tree: Tree) -> None:
    """As if every position were 0, with a width of the shared key that could not be rotated."""
    inputs = {"query": normal(2, 5, 11)}
    config, turned_by_0 = small(rope_base=None), small(max_positions=1)
    w = weights_of(config)
    want = bounded(turned_by_0, inputs | {"positions": np.zeros((2, 5), dtype=np.int64)}, w)
    layer = layer_of(tree, config, w)
    y, _ = tree(layer, inputs, return_weights=True)
    got = {"y": y} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name
    odd = small(rope_base=None, rope_dim=3)
    assert layer_of(tree, odd, weights_of(odd)).config == odd


def test_written_out_it_is_attention_with_rotary_positions(tree: Tree) -> None:
    """Without norms to speak of and with square w_dkv: keys of `rotary`, the part that turns first."""
    config = small(causal=True, rope_layout="half", kv_rank=11, norm_eps=2.0**60)
    w, x = weights_of(config), {"query": normal(2, 5, 11)}
    w["w_dkv"], w["w_kv_norm"] = np.eye(11), np.full(11, 2.0**30)
    first = {"w_q": np.concatenate([w["w_q"][..., 2:], w["w_q"][..., :2]], axis=-1), "w_v": w["w_uv"], "w_o": w["w_o"]}
    shared = np.broadcast_to(w["w_k_rot"][:, None], (11, 3, 4))
    first["w_k"] = np.concatenate([shared, w["w_uk"]], axis=-1)
    whole = rotary.Config(
        d_model=11, num_heads=3, head_dim=6, value_head_dim=7, rotary_dim=4, causal=True, use_bias=False
    )
    # x / sqrt(mean x^2 + 2^60) * 2^30 is x, up to a relative error of mean x^2 / 2^61, far below a rounding.
    want, limit = bounded(whole, x, first)["y"], bounded(config, x, w)["y"]
    (y,) = tree(layer_of(tree, config, w), x)
    assert ratio(y, ErrArray(want.v, want.b + limit.b)) <= 1


def test_torch_rms_norm_and_scaled_dot_product_attention() -> None:
    """Outputs and every gradient, with PyTorch's own norm, complex products and attention."""
    config = small(q_rank=13, causal=True)
    w, x = weights_of(config), torch.from_numpy(normal(2, 5, 11)).requires_grad_()
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    phases = torch.arange(5).double()[:, None] * 10000.0 ** (-torch.arange(0, 4, 2).double() / 4)
    turn = torch.polar(torch.ones_like(phases), phases)

    def turned(a: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(a.unflatten(-1, (2, 2)).contiguous()) * turn).flatten(-2)

    def norm(a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(a, a.shape[-1:], weight, eps=config.norm_eps)

    latent = norm(x @ p["w_dkv"], p["w_kv_norm"])
    q = torch.einsum("bte,ehk->bhtk", norm(x @ p["w_dq"], p["w_q_norm"]), p["w_q"])
    q = torch.cat([q[..., :2], turned(q[..., 2:])], -1)
    key = turned(x @ p["w_k_rot"])[:, None].expand(-1, 3, -1, -1)
    k = torch.cat([torch.einsum("bsz,zhq->bhsq", latent, p["w_uk"]), key], -1)
    v = torch.einsum("bsz,zhv->bhsv", latent, p["w_uv"])
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = torch.einsum("bhtv,hvd->btd", found, p["w_o"])
    want = bounded(config, {"query": x.detach().numpy()}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=x, **p).items():
        assert ratio(grad, want[name]) <= 1, name


# Fields ---------------------------------------------------------------------------------------------------------------


# Keys that an indexer chooses -----------------------------------------------------------------------------------------


def indexed(**fields: Any) -> Config:
    return small(q_rank=3, causal=True, index_heads=3, index_dim=5, **{"index_keys": 3} | fields)


@pytest.mark.parametrize("numbers", [2**20, 300])
@pytest.mark.parametrize("absorbed", [False, True])
def test_chosen_keys_alone_are_read(tree: Tree, absorbed: bool, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that reads its chosen keys alone gives what the textbook gives, gradients too, in one block or in many."""
    chosen = import_module(f"{tree.package.__name__}.attention.chosen")
    monkeypatch.setattr(chosen, "BLOCK_NUMBERS", numbers)
    by_index, calls = chosen.attend_by_index, []
    monkeypatch.setattr(chosen, "attend_by_index", lambda *args, **more: calls.append(1) or by_index(*args, **more))
    config, inputs = indexed(absorbed=absorbed), {"query": normal(2, 23, 11)}
    w = weights_of(config)
    layer, want = layer_of(tree, config, w), bounded(config, inputs, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 23, 11)))
    assert calls
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name


def test_as_many_keys_as_there_are(tree: Tree) -> None:
    """Then the indexer has nothing to say, but for a field: that is latent attention."""
    config, inputs = indexed(index_keys=7), {"query": normal(2, 7, 11)}
    w, plain = weights_of(config), replace(config, index_keys=None, index_heads=None, index_dim=None)
    want = bounded(plain, inputs, {name: x for name, x in w.items() if "index" not in name})
    assert ratio(tree(layer_of(tree, config, w), inputs)[0], want["y"]) <= 1


def test_steps_read_chosen_keys_alone(tree: Tree) -> None:
    """A prompt and steps of one position are the full pass, where each chooses among the keys so far."""
    config, x = indexed(absorbed=True), normal(2, 21, 11)
    w = weights_of(config)
    layer, want = layer_of(tree, config, w), bounded(config, {"query": x}, w)["y"]
    cache = layer.init_cache(2, 24, dtype="float64")
    assert tuple(cache.arrays["index_k"].shape)[2:] == (5,)
    outputs = []
    for start, stop in ((0, 18), (18, 19), (19, 20), (20, 21)):
        y, cache = layer.step(tree.array(x[:, start:stop]), cache)
        outputs.append(tree.numpy(y))
    assert ratio(np.concatenate(outputs, 1), want) <= 1


def test_parameters_of_the_queries() -> None:
    assert "w_dq" not in small().params()
    assert small().shapes()["w_q"] == (11, 3, 6)
    assert small(q_rank=13).shapes()["w_q"] == (13, 3, 6)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "odd": ({"rope_dim": 3}, "an even number of rotated dimensions, got 3"),
    "rank": ({"kv_rank": 0}, "kv_rank to be an integer of at least 1, got 0"),
    "form": ({"absorbed": "yes"}, "absorbed to be True or False, got 'yes'"),
    "bias": ({"use_bias": 1}, "use_bias to be True or False, got 1"),
    "half an indexer": (
        {"index_keys": 2, "index_dim": 4},
        "index_keys, index_heads, index_dim together, or none of them, got no index_heads",
    ),
    "narrow indexer": (
        {"index_keys": 2, "index_heads": 2, "index_dim": 1},
        "index_dim of at least rope_dim, got 1 and ",
    ),
    "eps": ({"norm_eps": 0.0}, "norm_eps to be a finite int or float above 0.0, got 0.0"),
    "factors": (
        {"rope_scaling": "longrope", "original_max_positions": 8, "short_factor": (1.0, 1.0), "long_factor": (1.0,)},
        "long_factor to be 2 finite numbers above 0, got (1.0,)",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_cannot_be_right(why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        small(**fields)
    assert str(caught.value).startswith(f"mla: expected {words}")
