"""T5's relative position biases against scalar loops, the authors' buckets in float32, and `mha` with biases given."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from attn_np.contract import mha
from attn_np.contract.t5_bias import EXAMPLES, Config
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
    weights_of,
)

# Scalar loops ---------------------------------------------------------------------------------------------------------


def bucket(relative_position: int, bidirectional: bool, buckets: int, most: int) -> int:
    """As the authors compute it, in float32: of a key's position minus the query's."""
    found, distance = 0, -relative_position
    if bidirectional:
        buckets //= 2
        found += buckets * (distance < 0)
        distance = abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return found + distance
    # float32 as in the original: the quotient of the logarithms, then the product, then cut to an integer
    share = np.log(np.float32(distance) / np.float32(exact)) / np.float32(log(most / exact))
    return found + min(exact + int(share * np.float32(buckets - exact)), buckets - 1)


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    words, table = separate(inputs), params["w_bias"].tolist()
    t, s = (x.shape[1] for x in words[:2])
    config, rows = each_row(config, inputs, words, (len(words[0]), config.num_heads, t, s))
    w = {name: p.tolist() for name, p in params.items()}
    both = not config.causal if config.bidirectional is None else config.bidirectional

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        own = table[bucket(j - i, both, config.num_buckets, config.max_distance)][h]
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) + own

    return stacked([heads_by_hand(config, w, row, score) for row in rows], "y", "out1")


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_the_authors(bidirectional: bool) -> None:
    """With the default table, for all relative positions up to twice the largest distance."""
    config = Config(d_model=2, num_heads=1, causal=not bidirectional)
    found, most = config.buckets(), config.max_distance
    assert (config.num_buckets, most) == (32, 128)
    for relative_position in range(-2 * most, 2 * most + 1):
        ours = found[min(max(relative_position, -most), most) + most]
        assert ours == bucket(relative_position, bidirectional, 32, 128), relative_position


def test_buckets_known_by_heart() -> None:
    """Where those of the default table begin, for keys before the query; 16, 32 and 64 are exact powers."""
    both, one = (Config(d_model=2, num_heads=1, causal=causal).buckets()[128::-1] for causal in (False, True))
    assert [both.index(x) for x in range(16)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    assert [one.index(x) for x in range(16, 32)] == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


@pytest.mark.parametrize("side", [2, 4, 6, 16, 64])
@pytest.mark.parametrize("most", [33, 100, 512])
def test_buckets_grow_by_one_or_stay(side: int, most: int) -> None:
    """From 0, never skipping back, to the last of the side."""
    found = Config(d_model=2, num_heads=1, causal=True, num_buckets=side, max_distance=most).buckets()
    before, behind = found[most::-1], found[most + 1 :]
    assert list(before) == sorted(before)
    assert before[: side // 2 + 1] == tuple(range(side // 2 + 1))
    assert before[-1] == side - 1
    assert set(behind) == {0}


# Multi-head attention with a bias -------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES)
def test_multi_head_attention_with_the_biases_given(tree: Tree, example: str) -> None:
    """Outputs and gradients; the table's gradient is the bias's, added up over the places of a bucket."""
    config, t, s = EXAMPLES[example], 11, 13 if example == "cross" else 11
    own = {name: value for name, value in config.as_dict().items() if name in mha.Config.fields()}
    w, rng = weights_of(config), np.random.default_rng(0)
    inputs = {"query": rng.normal(size=(2, t, config.d_model)), "mask": rng.random((2, 1, t, s)) < 0.7}
    inputs |= {"bias": rng.normal(size=(2, 1, 1, s)), "keep": rng.random((2, config.num_heads, t, s)) < 0.7}
    if example == "cross":
        inputs |= {name: rng.normal(size=(2, s, getattr(config, f"{name}_dim"))) for name in ("key", "value")}
    both = bool(config.bidirectional)
    rows = np.array(
        [[bucket(j - i, both, config.num_buckets, config.max_distance) for j in range(s)] for i in range(s - t, s)]
    )
    added = np.moveaxis(w["w_bias"][rows], -1, 0) + inputs["bias"]
    rest = {name: x for name, x in w.items() if name != "w_bias"}
    want = bounded(mha.Config(**own), inputs | {"bias": added}, rest)
    hot = (rows[..., None] == np.arange(config.num_buckets)).astype(np.float64)
    spread = want.pop("dbias")
    want["dbias"] = np.sum(spread, axis=(1, 2)).reshape(2, 1, 1, s)
    each = spread.reshape(*spread.shape, 1) * hot
    want["dw_bias"] = np.sum(each, axis=(0, 2, 3)).swapaxes(0, 1)
    layer = layer_of(tree, config, w)
    y, weights = tree(layer, inputs, return_weights=True)
    got = {"y": y, "out1": weights} | tree.gradients(layer, inputs, cotangent(y.shape))
    for name, array in want.items():
        assert ratio(got[name], array) <= 1, name


def test_far_keys_share_a_bucket(tree: Tree) -> None:
    """With no products, weights are the raised numbers of the table, normalised."""
    config = Config(d_model=2, num_heads=1, use_bias=False, num_buckets=4, max_distance=2)
    w = {name: np.zeros(shape) for name, shape in config.shapes().items()}
    w["w_bias"] = np.log(np.array([[1.0], [2.0], [4.0], [8.0]]))
    _, weights = tree(layer_of(tree, config, w), {"query": np.ones((1, 5, 2))}, return_weights=True)
    want = bounded(config, {"query": np.ones((1, 5, 2))}, w)["out1"]
    assert ratio(weights, want) <= 1
    raised = np.array([2.0, 2.0, 1.0, 8.0, 8.0])
    assert ratio(raised / raised.sum(), want[0, 0, 2]) <= 1


# Fields ---------------------------------------------------------------------------------------------------------------


def test_sides_follow_from_causality() -> None:
    plain = Config(d_model=2, num_heads=1)
    assert (plain.bidirectional, plain.scale) == (True, 1.0)
    assert not Config(d_model=2, num_heads=1, causal=True).bidirectional
    assert Config(d_model=2, num_heads=1, causal=True, bidirectional=True).bidirectional
    assert replace(plain, causal=True).bidirectional


REFUSED = {
    "odd": ({"num_buckets": 6}, "num_buckets to be a multiple of 4, for both sides, got 6; half of a side's buckets"),
    "one": (
        {"num_buckets": 3, "causal": True},
        "num_buckets to be a multiple of 2, for one side, got 3; half of a side's buckets",
    ),
    "near": (
        {"num_buckets": 32, "max_distance": 8},
        "max_distance above 8, the distances with a bucket of their own, got 8; set max_distance=",
    ),
    "word": ({"bidirectional": "no"}, "bidirectional to be True or False, got 'no'; set bidirectional="),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(tree: Tree, why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        tree.package.build("t5_bias", d_model=6, num_heads=2, **fields)
    assert str(caught.value).startswith(f"t5_bias: expected {words}")
