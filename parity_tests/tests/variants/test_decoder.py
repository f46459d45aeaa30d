"""Decoder attention against scalar loops, the variants that it is made of, and the models whose fields it has."""

from math import exp, log, prod, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import Config as AnyConfig
from attn_np.contract import gqa, rotary
from attn_np.contract.decoder import Config
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

# Scalar loops ---------------------------------------------------------------------------------------------------------


def normed(
    kind: str | None, over: str | int, eps: float, offset: float, heads: list[list[float]], w: Any, name: str
) -> list[list[float]]:
    """What the heads have, some at a time brought to one size; then each number by its weight and its shift."""
    if kind is None:
        return heads
    width, together = len(heads[0]), {"head": 1, "all": len(heads)}.get(str(over), over)
    made = []
    for first in range(0, len(heads), int(together)):
        joint = [a for x in heads[first : first + int(together)] for a in x]
        mean = sum(joint) / len(joint) if kind == "layer" else 0.0
        size = sqrt(sum((a - mean) ** 2 for a in joint) / (1 if kind == "l2" else len(joint)) + eps)
        made += [(a - mean) / size for a in joint]

    def of(which: str, h: int, e: int, otherwise: float) -> float:
        shared, own = w.get(f"{which}_{name}_norm"), w.get(f"{which}_{name}_norm_heads")
        own = w.get(f"{which}_qk_norm_heads") or own if name in "qk" else own
        return shared[e] if shared else own[h][e] if own else otherwise

    return [
        [made[h * width + e] * (offset + of("w", h, e, 1.0)) + of("b", h, e, 0.0) for e in range(width)]
        for h in range(len(heads))
    ]


def projected(w: Any, name: str, word: list[float]) -> list[list[float]]:
    """What each head has of a word."""
    heads = range(len(w[f"w_{name}"][0]))
    made: list[list[float]] = [[sum(a * row[h][e] for a, row in zip(word, w[f"w_{name}"], strict=True))
             for e in range(len(w[f"w_{name}"][0][h]))] for h in heads]  # fmt: skip
    shift = w.get(f"b_{name}")
    return made if shift is None else [[a + b for a, b in zip(made[h], shift[h], strict=True)] for h in heads]


def clipped(c: Config, x: list[float]) -> list[float]:
    return x if c.clip_qkv is None else [max(-c.clip_qkv, min(a, c.clip_qkv)) for a in x]


def compared(c: Config, w: Any, name: str, word: list[float], place: int, thetas: list[float]) -> list[list[float]]:
    """Queries or keys of a word: clipped, then turned, and normed before that or afterwards."""
    how, heads = (c.norm, c.norm_over, c.norm_eps, c.norm_offset), projected(w, name, word)
    heads = heads if c.norm_position == "after_rotation" else normed(*how, heads, w, name)
    heads = [clipped(c, x) for x in heads]
    heads = [turned(c, x, place, thetas) for x in heads] if c.rope_base is not None else heads
    return normed(*how, heads, w, name) if c.norm_position == "after_rotation" else heads


def values_of(c: Config, w: Any, word: list[float]) -> list[list[float]]:
    """The values of a word."""
    heads = projected(w, "k" if c.keys_as_values else "v", word)
    heads = normed("rms" if c.value_norm else None, "head", c.norm_eps, 0.0, heads, {}, "v")
    return [clipped(c, x) for x in heads]


def forgetting(w: Any, h: int, word: list[float]) -> float:
    """A head's gate between 0 and 1 at a word."""
    return 1 / (1 + exp(-sum(a * row[h] for a, row in zip(word, w["w_forget"], strict=True)) - w["b_forget"][h]))


def activated(c: Config, a: float) -> float:
    """A gate from its score."""
    return {"sigmoid": 1 / (1 + exp(-a)), "silu": a / (1 + exp(-a)), "softplus": log(1 + exp(a))}[c.gate_activation]


def loops(
    c: Config, w: Any, x: Any, places: Any, thetas: Any, shared: Any, mask: Any, bias: Any, keep: Any
) -> tuple[Any, Any]:
    """Output and weights of one batch row, one number at a time."""
    (left, right), t = c.window or (None, None), len(x)
    q = [compared(c, w, "q", word, m, thetas) for word, m in zip(x, places, strict=True)]
    if c.shared_kv:
        k, v = shared
    else:
        k = [compared(c, w, "k", word, m, thetas) for word, m in zip(x, places, strict=True)]
        v = [values_of(c, w, word) for word in x]
    if c.temperature_growth is not None and c.temperature_interval is not None:
        warm = [1 + c.temperature_growth * log(1 + (m + 1) // c.temperature_interval) for m in places]
        q = [[[a * factor for a in head] for head in heads] for heads, factor in zip(q, warm, strict=True)]
    r = c.num_heads // (c.num_kv_heads or c.num_heads)
    y, weights = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in x], []
    contexts: list[list[list[float]]] = [[] for _ in x]
    for h in range(c.num_heads):
        alphas, gates = [], [forgetting(w, h, word) if c.forget_gate else 1.0 for word in x]
        is_key = [any(mask[h][i][j] for i in range(j, t)) for j in range(t)]  # no query sees padding
        gates = [gate if real else 1.0 for gate, real in zip(gates, is_key, strict=True)]
        for i in range(t):
            raised = []
            for j in range(t):
                hidden = not mask[h][i][j] or (c.causal and j > i)
                hidden = hidden or (c.chunk_size is not None and i // c.chunk_size != j // c.chunk_size)
                hidden = hidden or (left is not None and j < i - left) or (right is not None and j > i + right)
                score = sum(a * b for a, b in zip(q[i][h], k[j][h // r], strict=True))
                scale = sqrt(len(q[i][h])) if c.norm == "l2" else 1 / sqrt(len(q[i][h]))
                score *= scale if c.scale is None else c.scale
                score = score if c.softcap is None else c.softcap * tanh(score / c.softcap)
                raised.append(0.0 if hidden else exp(score + bias[h][i][j]) * prod(gates[j + 1 : i + 1]))
            total = sum(raised) + (exp(w["sinks"][h]) if c.sinks else 0.0)
            alphas.append([e / total if e else 0.0 for e in raised])
            used = [a / (1 - c.dropout) * kept for a, kept in zip(alphas[i], keep[h][i], strict=True)]
            widths = range(len(v[0][0]))
            contexts[i].append([sum(a * word[h // r][e] for a, word in zip(used, v, strict=True)) for e in widths])
        weights.append(alphas)
    for i, heads in enumerate(contexts):
        how = (c.context_norm, c.context_norm_over, c.context_norm_eps, 0.0)
        shown = any(a for alphas in weights for a in alphas[i])  # the input of a query that sees nothing is 0
        word = x[i] if shown else [0.0] * len(x[i])
        gates = [[activated(c, a) for a in scores] for scores in projected(w, "gate", word)] if c.gate else []
        for h, head in enumerate(normed(*how, heads, w, "context")):
            for e, found in enumerate(head):
                opened = found * gates[h][e if len(gates[h]) > 1 else 0] if c.gate else found
                y[i] = [sum_ + opened * row for sum_, row in zip(y[i], w["w_o"][h][e], strict=True)]
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    places = inputs.get("positions", np.broadcast_to(np.arange(t), (b, t)))
    length = int(places.max()) + 1 if "positions" in inputs else t
    turns: Any = config
    rotary_dim = None if config.rope_scaling == "proportional" else config.rotary_dim
    width = rotary_dim or params["w_q"].shape[-1]
    thetas = [] if config.rope_base is None else published(turns, width, length or 0)
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    places = places if places.ndim == 2 else np.moveaxis(places, 0, -1)
    given = [inputs[f"shared_{x}"].tolist() for x in "kv"] if config.shared_kv else [[[]] * b] * 2
    each = zip(rows, places, zip(*given, strict=True), strict=True)
    found = [loops(config, w, row[0], at.tolist(), thetas, given, *row[1:]) for row, at, given in each]
    return stacked(found, "y", "out1")


# Models ---------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"d_model": 6, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
BOTH: dict[str, Any] = {"qkv_bias": True, "output_bias": True}
LLAMA3: dict[str, Any] = {
    "rope_scaling": "llama3",
    "rope_scaling_factor": 8.0,
    "original_max_positions": 5,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LONGROPE: dict[str, Any] = {
    "rope_scaling": "longrope",
    "rope_scaling_factor": 32.0,
    "original_max_positions": 5,
    "short_factor": (1.0, 1.1, 1.2, 1.3),
    "long_factor": (1.0, 3.0, 9.0, 27.0),
}
YARN: dict[str, Any] = {
    "rope_scaling": "yarn",
    "rope_scaling_factor": 32.0,
    "original_max_positions": 64,
    "yarn_truncate": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama 2 7B": {"num_kv_heads": 4},
    "Llama 3": {"rope_base": 500000.0},
    "Llama 3.1": {"rope_base": 500000.0, **LLAMA3},
    "Mistral": {"window": (3, None)},
    "Qwen 2": {"rope_base": 1e6, "qkv_bias": True},
    "Qwen 3": {"rope_base": 1e6, "norm": "rms"},
    "Qwen3-Next": {"rope_base": 1e7, "norm": "rms", "rotary_dim": 2, "gate": True},
    "Gemma 2": {"softcap": 50.0, "scale": 144**-0.5, "window": (3, None)},
    "Gemma 3, window": {"norm": "rms", "norm_offset": 1.0, "scale": 168**-0.5, "window": (3, None)},
    "Gemma 3, whole": {
        "norm": "rms",
        "norm_offset": 1.0,
        "rope_base": 1e6,
        "rope_scaling": "linear",
        "rope_scaling_factor": 8.0,
    },
    "Phi-2": {"num_kv_heads": 4, "rotary_dim": 4, **BOTH},
    "Phi-3": {"window": (5, None), **LONGROPE},
    "GPT-NeoX": {"num_kv_heads": 4, "rotary_dim": 2, **BOTH},
    "GPT-J": {"num_kv_heads": 4, "rotary_dim": 4, "rope_layout": "interleaved"},
    "Falcon 7B": {"num_kv_heads": 1},
    "Cohere": {"rope_layout": "interleaved", "norm": "layer", "norm_weight": "own", "norm_eps": 1e-5},
    "Hunyuan": {"norm": "rms", "norm_position": "after_rotation", "norm_eps": 1e-5},
    "nanochat": {"num_kv_heads": 4, "norm": "rms", "norm_position": "after_rotation", "norm_weight": None},
    "BitNet": {"context_norm": "rms", "context_norm_over": "all", "context_norm_weight": "own"},
    "FoX (Pro)": {"forget_gate": True, "rope_base": None, "norm": "rms", "context_norm": "rms", "gate": True},
    "Laguna": {"norm": "rms", "gate": True, "gate_over": "head", "gate_activation": "softplus"},
    "silu": {"gate": True, "gate_activation": "silu", "context_norm": "l2", "context_norm_weight": None},
    "nGPT": {"num_kv_heads": 4, "norm": "l2", "norm_position": "after_rotation", "norm_weight": "tied"},
    "one weight over all heads": {"norm": "rms", "norm_over": "all"},
    "OLMo 2": {"num_kv_heads": 4, "norm": "rms", "norm_over": "all", "norm_weight": "own", "rope_base": 500000.0},
    "gpt-oss": {"sinks": True, "window": (3, None), "rope_base": 150000.0, **BOTH, **YARN},
    "no positions": {"rope_base": None},
}


@pytest.mark.parametrize("model", MODELS)
def test_models(model: str) -> None:
    """PyTorch's outputs and gradients are NumPy's, and both are the loops'; every part of a model is felt."""
    config, inputs = Config(**SMALL | MODELS[model]), {"query": normal(2, 7, 6)}
    w, tree = weights_of(config), TREES["torch"]
    want, layer = bounded(config, inputs, w), layer_of(tree, config, w)
    y, probs = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": probs} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, x in (got | witness(config, inputs, w)).items():
        assert ratio(x, want[name]) <= 1, name
    shared: dict[str, Any] = {"num_kv_heads": config.num_kv_heads}
    bare = Config(**SMALL | shared)
    plain = bounded(bare, inputs, {name: x for name, x in w.items() if name in bare.params()})
    assert (ratio(y, plain["y"]) <= 1) == (MODELS[model].keys() <= {"num_kv_heads"})


# Variants that it is made of ------------------------------------------------------------------------------------------


def same_as(tree: Tree, ours: Config, theirs: AnyConfig) -> None:
    """Outputs and gradients, with a mask, a bias and dropout."""
    rng, w = np.random.default_rng(2), weights_of(ours)
    inputs = {"query": normal(2, 5, 6), "mask": rng.random((2, 4, 5, 5)) < 0.7}
    inputs |= {"bias": rng.normal(size=(2, 4, 5, 5)), "keep": rng.random((2, 4, 5, 5)) < 0.5}
    layer, want = layer_of(tree, ours, w), bounded(theirs, inputs, w)
    y, probs = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": probs} | tree.gradients(layer, inputs, cotangent(y.shape))
    assert set(got) == set(want)
    for name in set(got) - {"db_k"}:  # without turning, scores do not feel it: its gradient is rounding alone
        assert ratio(got[name], want[name]) <= 1, name


def test_it_is_rotary(tree: Tree) -> None:
    fields: dict[str, Any] = {"d_model": 6, "num_heads": 4, "head_dim": 8, "causal": True, "softcap": 2.0}
    fields |= {"dropout": 0.5, "rotary_dim": 6, "rope_layout": "interleaved", "window": (3, 1)} | LLAMA3
    same_as(tree, Config(**fields, **BOTH), rotary.Config(**fields))


def test_without_turning_it_is_gqa(tree: Tree) -> None:
    fields: dict[str, Any] = {**SMALL, "causal": True, "scale": 0.25, "dropout": 0.5}
    same_as(tree, Config(**fields, **BOTH, rope_base=None), gqa.Config(**fields))


def test_torch_functions() -> None:
    """PyTorch's own norm, attention with shared heads and sigmoid: outputs and every gradient."""
    config = Config(**SMALL, norm="rms", gate=True, rope_base=None)
    w, x = weights_of(config), torch.from_numpy(normal(2, 5, 6)).requires_grad_()
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, p[f"w_{name}"]) for name in "qkv")
    q = torch.nn.functional.rms_norm(q, (8,), p["w_q_norm"], eps=1e-6)
    k = torch.nn.functional.rms_norm(k, (8,), p["w_k_norm"], eps=1e-6)
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    found = found * torch.sigmoid(torch.einsum("btd,dhv->bhtv", x, p["w_gate"]))
    y = torch.einsum("bhtv,hvd->btd", found, p["w_o"])
    want = bounded(config, {"query": x.detach().numpy()}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=x, **p).items():
        assert ratio(grad, want[name]) <= 1, name


# Fields ---------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "groups": ({"num_kv_heads": 3}, "num_heads divisible by num_kv_heads, got num_heads=4, num_kv_heads=3"),
    "width": ({"head_dim": None}, "d_model divisible by num_heads, got d_model=6, num_heads=4"),
    "norm": ({"norm": "l1"}, "norm to be one of rms, layer, l2, got 'l1'"),
    "position": (
        {"norm_position": "after"},
        "norm_position to be one of before_rotation, after_rotation, got 'after'; set norm_position=",
    ),
    "weight": ({"norm_weight": "each"}, "norm_weight to be one of shared, own, tied, got 'each'"),
    "tied": (
        {"norm_weight": "tied"},
        "as many heads of keys for norm_weight='tied', got num_heads=4, num_kv_heads=2; change one of them",
    ),
    "contexts are tied to nothing": (
        {"context_norm_weight": "tied"},
        "context_norm_weight to be one of shared, own, got 'tied'; set context_norm_weight=",
    ),
    "over": ({"norm_over": "each"}, "norm_over to be one of head, all, or how many heads from 1, got 'each'"),
    "over no heads": ({"norm_over": 0}, "norm_over to be one of head, all, or how many heads from 1, got 0"),
    "over some heads": (
        {"norm_over": 4},
        "num_heads and num_kv_heads divisible by norm_over, got norm_over=4, num_heads=4, num_kv_heads=2; change one",
    ),
    "contexts of some heads": (
        {"context_norm_over": 3},
        "num_heads divisible by context_norm_over, got context_norm_over=3, num_heads=4; change one of them",
    ),
    "eps": ({"norm_eps": None}, "norm_eps to be a finite int or float above 0.0, got None; set norm_eps="),
    "scale": ({"scale": 10**400}, "scale to be a finite int or float, got 1000"),
    "offset of nothing": ({"norm_offset": None}, "norm_offset to be a finite int or float, got None; set norm_offset="),
    "offset": ({"norm_offset": 1.0}, "a norm with a weight for norm_offset=, got norm=None, norm_weight='shared'"),
    "a norm's bias": (
        {"norm": "rms", "norm_bias": True},
        "norm='layer' with a weight of its own for norm_bias=, got norm='rms', norm_weight='shared'; leave norm_bias",
    ),
    "a bias of a word": ({"norm_bias": "yes"}, "norm_bias to be True or False, got 'yes'"),
    "a temperature that does not grow": (
        {"temperature_growth": 0.1},
        "both of temperature_growth and temperature_interval, or none, got temperature_growth=0.1, "
        "temperature_interval=None; give both or none of them",
    ),
    "no room": ({"clip_qkv": 0.0}, "clip_qkv to be a finite int or float above 0.0, got 0.0; set clip_qkv="),
    "turning": ({"rope_base": None, "rotary_dim": 4}, "rope_base for rope_scaling=, rotary_dim= or rope_sections="),
    "rope_scaling": ({"rope_scaling": "yarn"}, "rope_scaling_factor for rope_scaling='yarn', got none"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        Config(**SMALL | fields)
    assert str(caught.value).startswith(f"decoder: expected {words}")
