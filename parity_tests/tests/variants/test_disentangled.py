"""Disentangled attention against scalar loops, its terms gathered in PyTorch, and attention without positions."""

from math import ceil, copysign, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import mha
from attn_np.contract.disentangled import Config
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

# Scalar loops, from equations 2 to 4 ----------------------------------------------------------------------------------


def bucket(distance: int, count: int, most: int) -> int:
    """The authors' formula for the later versions."""
    half = count // 2
    if abs(distance) <= half:
        return distance
    far = ceil(log(abs(distance) / half) / log((most - 1) / half) * (half - 1)) + half
    return int(copysign(far, distance))


def delta(i: int, j: int, k: int, buckets: int | None = None) -> int:
    """Equation 3, case by case; of buckets in the place of distances where there are some."""
    if buckets is not None:
        i, j, k = bucket(i - j, buckets, k), 0, buckets
    if i - j <= -k:
        return 0
    if i - j >= k:
        return 2 * k - 1
    return i - j + k


def normed(row: list[float], gain: list[float], shift: list[float], eps: float) -> list[float]:
    mean = sum(row) / len(row)
    size = sqrt(sum((a - mean) ** 2 for a in row) / len(row) + eps)
    return [(a - mean) / size * g + b for a, g, b in zip(row, gain, shift, strict=True)]


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head: the terms one by one."""
    words, d = separate(inputs), config.d_model
    t, s = (x.shape[1] for x in words[:2])
    limits = config.max_distance, config.buckets_per_side
    config, rows = each_row(config, inputs, words, (len(words[0]), config.num_heads, t, s))
    w = {name: p.tolist() for name, p in params.items()}
    if config.norm_rel:
        w["w_rel"] = [normed(row, w["w_rel_norm"], w["b_rel"], config.norm_eps) for row in w["w_rel"]]

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    def projected(name: str, h: int, row: int) -> list[float]:
        own, shift = (
            (w[f"w_{name}"], w.get(f"b_{name}"))
            if config.share_projections
            else (w[f"w_rel_{name}"], w.get(f"b_rel_{name}"))
        )
        found: list[float] = [sum(w["w_rel"][row][i] * own[i][h][c] for i in range(d)) for c in range(len(own[0][0]))]
        return found if shift is None else [a + b for a, b in zip(found, shift[h], strict=True)]

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        found = dot(q, k)
        if "c2p" in config.score_terms:
            found += dot(q, projected("k", h, delta(i, j, *limits)))
        if "p2c" in config.score_terms:
            pair = (i, j) if config.p2c_view == "query" else (j, i)
            found += dot(k, projected("q", h, delta(*pair, *limits)))
        return found * (1 / sqrt(len(q) * (1 + len(config.score_terms))) if config.scale is None else config.scale)

    return stacked([heads_by_hand(config, w, row, score) for row in rows], "y", "out1")


# The terms in PyTorch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)])
def test_terms_gathered_in_torch(terms: tuple[str, ...]) -> None:
    """Algorithm 1 of the paper, with `gather`: outputs and gradients."""
    config, t = Config(d_model=6, num_heads=2, head_dim=5, max_distance=3, score_terms=terms, use_bias=False), 7
    w, x = weights_of(config), np.random.default_rng(0).normal(size=(2, t, 6))
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    given = torch.from_numpy(x).requires_grad_()
    q, k, v = (torch.einsum("btd,dhk->bhtk", given, p[name]) for name in ("w_q", "w_k", "w_v"))
    rows = torch.tensor([[delta(i, j, 3) for j in range(t)] for i in range(t)]).expand(2, 2, t, t)
    scores = q @ k.transpose(-1, -2)
    if "c2p" in terms:
        rel_k = torch.einsum("xd,dhk->hxk", p["w_rel"], p["w_rel_k"])
        scores = scores + torch.gather(q @ rel_k.transpose(-1, -2), -1, rows)
    if "p2c" in terms:
        rel_q = torch.einsum("xd,dhk->hxk", p["w_rel"], p["w_rel_q"])
        scores = scores + torch.gather(k @ rel_q.transpose(-1, -2), -1, rows).transpose(-1, -2)
    weights = torch.softmax(scores / sqrt(5 * (1 + len(terms))), dim=-1)
    y = torch.einsum("bhtv,hvd->btd", weights @ v, p["w_o"])
    want = bounded(config, {"query": x}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=given, **p).items():
        assert ratio(grad, want[name]) <= 1, name


@pytest.mark.parametrize("norm", [True, False])
def test_the_later_versions_in_torch(norm: bool) -> None:
    """As the published models compute it: logarithmic buckets, both terms by one table of rows, shared projections."""
    fields: dict[str, Any] = {
        "max_distance": 6,
        "buckets_per_side": 4,
        "share_projections": True,
        "p2c_view": "query",
        "norm_rel": norm,
    }
    config = Config(d_model=6, num_heads=2, head_dim=5, **fields)
    t, w = 9, weights_of(config)
    x = np.random.default_rng(0).normal(size=(2, t, 6))
    p = {name: torch.from_numpy(a).requires_grad_() for name, a in w.items()}
    given = torch.from_numpy(x).requires_grad_()

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.einsum("...td,dhk->...htk", x, p[f"w_{name}"]) + p[f"b_{name}"][:, None]

    q, k, v = (heads(given, name) for name in "qkv")
    distance = np.arange(t)[:, None] - np.arange(t)[None, :]
    far = np.ceil(np.log(np.maximum(abs(distance), 1) / 2) / np.log(5 / 2)) + 2
    found = np.where(abs(distance) <= 2, distance, far * np.sign(distance)).astype(int)
    c2p, p2c = (torch.from_numpy(np.clip(x + 4, 0, 7)).expand(2, 2, t, t) for x in (found, -found))
    rel = p["w_rel"]
    if norm:
        rel = torch.nn.functional.layer_norm(rel, (6,), p["w_rel_norm"], p["b_rel"], 1e-7)
    scores = q @ k.mT + torch.gather(q @ heads(rel, "k").mT, -1, c2p)
    scores = scores + torch.gather(k @ heads(rel, "q").mT, -1, p2c).mT
    weights = torch.softmax(scores / sqrt(5 * 3), dim=-1)
    y = torch.einsum("bhtv,hvd->btd", weights @ v, p["w_o"]) + p["b_o"]
    want = bounded(config, {"query": x}, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=given, **p).items():
        assert ratio(grad, want[name]) <= 1, name


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_the_later_versions_in_transformers() -> None:
    """Its layer with random weights; with heads of 3 numbers the root that it takes in float32 is whole."""
    pytest.importorskip("transformers")
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    fields: dict[str, Any] = {"position_buckets": 8, "max_relative_positions": 16, "pos_att_type": ["p2c", "c2p"]}
    fields |= {"hidden_size": 9, "num_attention_heads": 3, "relative_attention": True, "share_att_key": True}
    theirs, t = DisentangledSelfAttention(DebertaV2Config(**fields)).double().eval(), 40
    config = Config(
        d_model=9, num_heads=3, max_distance=16, buckets_per_side=8, share_projections=True, p2c_view="query"
    )
    w, x = weights_of(config), np.random.default_rng(0).normal(size=(2, t, 9))
    w |= {"w_o": np.eye(9).reshape(3, 3, 9), "b_o": np.zeros(9)}
    for name in ("query", "key", "value"):
        weight, shift = w[f"w_{name[0]}"].reshape(9, 9).T, w[f"b_{name[0]}"].reshape(9)
        getattr(theirs, f"{name}_proj").load_state_dict(
            {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(shift)}
        )
    mask, rel = torch.ones((2, 1, t, t), dtype=torch.bool), torch.from_numpy(w["w_rel"])
    with torch.no_grad():
        y = theirs(torch.from_numpy(x), mask, rel_embeddings=rel)[0]
    assert ratio(y, bounded(config, {"query": x}, w)["y"]) <= 1


@pytest.mark.parametrize(("count", "most"), [(256, 512), (32, 128), (6, 9), (4, 5), (2, 3)])
def test_buckets_are_those_of_the_logarithm(count: int, most: int) -> None:
    config = Config(d_model=6, num_heads=2, max_distance=most, buckets_per_side=count)
    assert config.signed_buckets() == tuple(bucket(n, count, most) for n in range(-most, most + 1))


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("p2c",)])
def test_without_distances_it_is_multi_head_attention(tree: Tree, terms: tuple[str, ...]) -> None:
    """Embeddings of 0: outputs and gradients of `mha` with this scale, with a mask, a bias and dropout."""
    fields: dict[str, Any] = {"d_model": 6, "num_heads": 3, "head_dim": 5, "value_head_dim": 2, "dropout": 0.5}
    fields |= {"use_bias": False}
    config, rng, t = Config(**fields, max_distance=3, score_terms=terms), np.random.default_rng(0), 7
    inputs = {"query": rng.normal(size=(2, t, 6)), "bias": rng.normal(size=(2, 1, 1, t))}
    inputs |= {"mask": rng.random((2, 3, t, t)) < 0.7, "keep": rng.random((2, 3, t, t)) < 0.5}
    w = weights_of(config)
    w["w_rel"] = np.zeros_like(w["w_rel"])
    theirs = mha.Config(**fields, scale=1 / sqrt(5 * (1 + len(terms))))
    want, layer = bounded(theirs, inputs, {name: w[name] for name in theirs.params()}), layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


# Fields ---------------------------------------------------------------------------------------------------------------


def test_each_term_has_its_own_projection(tree: Tree) -> None:
    found = {
        terms: {
            name for name in tree.package.build("disentangled", d_model=6, num_heads=2, score_terms=terms).params()
            if "rel" in name
        }
        for terms in (("c2p", "p2c"), ("c2p",), ("p2c",))
    }  # fmt: skip
    assert found == {
        ("c2p", "p2c"): {"w_rel", "w_rel_k", "w_rel_q"},
        ("c2p",): {"w_rel", "w_rel_k"},
        ("p2c",): {"w_rel", "w_rel_q"},
    }


@pytest.mark.parametrize("terms", [(), ("p2p",), ("c2p", "c2p"), "c2p"])
def test_other_terms_are_refused(tree: Tree, terms: Any) -> None:
    with pytest.raises(ValueError) as caught:
        tree.package.build("disentangled", d_model=6, num_heads=2, score_terms=terms)
    words = f"score_terms to be some of c2p, p2c, each once, got {terms!r}; without any of them use mha"
    assert str(caught.value) == f"disentangled: expected {words}"


@pytest.mark.parametrize("buckets", [5, 14])
def test_buckets_that_do_not_fit_are_refused(tree: Tree, buckets: int) -> None:
    with pytest.raises(ValueError) as caught:
        tree.package.build("disentangled", d_model=6, num_heads=2, max_distance=8, buckets_per_side=buckets)
    words = (
        f"an even number of buckets below 2 max_distance - 2 = 14, got {buckets}; half of them hold one distance each"
    )
    assert str(caught.value) == f"disentangled: expected {words}, the others reach to max_distance"


def test_keys_of_another_width_have_projections_of_their_own(tree: Tree) -> None:
    """What projects the keys projects embeddings only where they have the queries' width: c2p needs it, not p2c."""
    fields = {"d_model": 6, "num_heads": 2, "key_dim": 5, "share_projections": True}
    words = "disentangled: expected key_dim=6, as d_model, with share_projections and c2p, got key_dim=5; w_k projects"
    with pytest.raises(ValueError) as caught:
        tree.package.build("disentangled", **fields)
    assert str(caught.value) == f"{words} embeddings of width d_model too: set share_projections=False"
    assert set(tree.package.build("disentangled", **fields | {"key_dim": 6}).params()) >= {"w_k", "w_rel"}
    config, rng = Config(**fields, score_terms=("p2c",), max_distance=2), np.random.default_rng(0)
    inputs = {"query": rng.normal(size=(2, 3, 6)), "key": rng.normal(size=(2, 7, 5))}
    w = weights_of(config)
    want, found = bounded(config, inputs, w), witness(config, inputs, w)
    y, weights = tree(layer_of(tree, config, w), inputs, return_weights=True)
    assert max(ratio(x, want[name]) for name, x in {"y": y, "out1": weights}.items()) <= 1
    assert max(ratio(x, want[name]) for name, x in found.items()) <= 1
