"""Transformer-XL's attention against scalar loops, the authors' shift of rows in PyTorch, and other attention."""

from math import cos, sin, sqrt

import numpy as np
import pytest
import torch

from attn_np.contract import mha
from attn_np.contract.transformer_xl import EXAMPLES, Config
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    separate,
    stacked,
    torch_gradients,
    weights_of,
)

# Scalar loops, from the equations of section 3.3 ----------------------------------------------------------------------


def encoding(distance: int, width: int, base: float) -> list[float]:
    """R of a distance: the sines, then the cosines."""
    angles = [distance / base ** (i / width) for i in range(0, width, 2)]
    return [sin(x) for x in angles] + [cos(x) for x in angles]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head: terms (a), (b), (c) and (d) one by one."""
    words, d = separate(inputs), config.d_model
    t, s = (x.shape[1] for x in words[:2])
    config, rows = each_row(config, inputs, words, (len(words[0]), config.num_heads, t, s))
    w = {name: p.tolist() for name, p in params.items()}

    def projected(h: int, distance: int) -> list[float]:
        r = encoding(distance, d, config.base)
        return [sum(r[i] * w["w_r"][i][h][c] for i in range(d)) for c in range(len(w["w_r"][0][0]))]

    rel = {(h, n): projected(h, n) for h in range(config.num_heads) for n in range(1 - t, s)}

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale, r = 1 / sqrt(len(q)) if config.scale is None else config.scale, rel[h, i - j]
        return scale * (dot(q, k) + dot(q, r) + dot(w["b_content"][h], k) + dot(w["b_position"][h], r))

    return stacked([heads_by_hand(config, w, row, score) for row in rows], "y", "out1")


# The authors' shift, in PyTorch ---------------------------------------------------------------------------------------


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Appendix B: a column of zeros before, read with rows one longer, the first row dropped."""
    b, h, t, s = x.shape
    return torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).reshape(b, h, s + 1, t)[:, :, 1:].reshape(b, h, t, s)


def test_the_authors_shift_of_rows() -> None:
    """Distances s - 1 ... 0 in a row, shifted by one more for each query: outputs and gradients."""
    config, t = Config(d_model=6, num_heads=2, head_dim=5, causal=True), 7
    w, x = weights_of(config), np.random.default_rng(0).normal(size=(2, t, 6))
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    given = torch.from_numpy(x).requires_grad_()
    q, k, v = (torch.einsum("btd,dhk->bhtk", given, p[name]) for name in ("w_q", "w_k", "w_v"))
    r = torch.tensor([encoding(n, 6, config.base) for n in range(t - 1, -1, -1)], dtype=torch.float64)
    rel = torch.einsum("xd,dhk->hxk", r, p["w_r"])
    content = (q + p["b_content"][:, None]) @ k.transpose(-1, -2)
    position = shifted((q + p["b_position"][:, None]) @ rel.transpose(-1, -2))
    hidden = torch.ones(t, t).triu(1).bool()
    weights = torch.softmax(((content + position) / sqrt(5)).masked_fill(hidden, -torch.inf), dim=-1)
    y = torch.einsum("bhtv,hvd->btd", weights @ v, p["w_o"])
    want = bounded(config, {"query": x}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    assert ratio(weights.detach(), want["out1"]) <= 1
    for name, grad in torch_gradients(y, query=given, **p).items():
        assert ratio(grad, want[name]) <= 1, name


# Identities -----------------------------------------------------------------------------------------------------------


def test_without_distances_it_is_multi_head_attention(tree: Tree) -> None:
    """w_r and b_content of 0: outputs and gradients of `mha`, with a mask, a bias and dropout."""
    fields = {"d_model": 6, "num_heads": 3, "head_dim": 5, "value_head_dim": 2, "dropout": 0.5, "use_bias": False}
    config, rng, t = Config(**fields), np.random.default_rng(0), 7
    inputs = {"query": rng.normal(size=(2, t, 6)), "bias": rng.normal(size=(2, 1, 1, t))}
    inputs |= {"mask": rng.random((2, 3, t, t)) < 0.7, "keep": rng.random((2, 3, t, t)) < 0.5}
    w = weights_of(config)
    w |= {name: np.zeros_like(w[name]) for name in ("w_r", "b_content")}
    theirs = mha.Config(**fields)
    want, layer = bounded(theirs, inputs, {name: w[name] for name in theirs.params()}), layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_segments_with_a_memory_are_one_text() -> None:
    """Section 3.2: each segment attends to the keys kept of those before."""
    from attn_np import build

    fields = EXAMPLES["causal"].as_dict()
    layer = build("transformer_xl", dtype="float64", **fields)
    x = np.random.default_rng(0).normal(size=(2, 9, 10))
    want = bounded(EXAMPLES["causal"], {"query": x}, layer.params())["y"]
    cache, found = layer.init_cache(2, 9), []
    for segment in (x[:, :3], x[:, 3:6], x[:, 6:]):
        y, cache = layer.step(segment, cache)
        found.append(y)
    assert ratio(np.concatenate(found, axis=1), want) <= 1


# Fields ---------------------------------------------------------------------------------------------------------------

REFUSED = {
    "odd": ({"d_model": 7}, "an even d_model, got 7; sines come with cosines"),
    "base": ({"d_model": 6, "base": 1.0}, "base to be a finite int or float above 1.0, got 1.0; set base="),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_cannot_be(tree: Tree, why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        tree.package.build("transformer_xl", num_heads=2, head_dim=3, **fields)
    assert str(caught.value) == f"transformer_xl: expected {words}"
