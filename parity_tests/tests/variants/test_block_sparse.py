"""Block-sparse attention against scalar loops, choices made by hand, and the variants at its ends."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attn_np.contract import chunked, mha
from attn_np.contract.block_sparse import Config
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops, from equations 2 to 6 of the paper ---------------------------------------------------------------------


def chosen(config: Config, queries: list[list[float]], keys: list[list[float]]) -> list[set[int]]:
    """The blocks that each query of one head sees, its own among them."""
    size, count = config.block_size, -(-len(keys) // config.block_size)
    parts = [keys[n * size : (n + 1) * size] for n in range(count)]
    means = [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]
    found = []
    for t in range(len(queries)):
        first, own = t - t % config.query_block, t // size
        others = [n for n in range(count) if (n < own if config.causal else n != own)]
        others.sort(key=lambda n: -sum(a * b for a, b in zip(queries[first], means[n], strict=True)))
        found.append({own, *others[: config.chosen_blocks]})
    return found


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    x, w = inputs["query"], {name: p.tolist() for name, p in params.items()}
    b, t, _ = x.shape
    options = SimpleNamespace(causal=config.causal, dropout=0.0)
    _, rows = each_row(SimpleNamespace(), {"keep": np.array(True)}, (x,), (b, config.num_heads, t, t))
    outputs = []
    for n, row in enumerate(rows):
        heads = [
            [np.einsum("td,dk->tk", x[n], params[f"w_{name}"][:, h]) + params.get(f"b_{name}", np.zeros((9, 1)))[h]
             for name in "qk"]
            for h in range(config.num_heads)
        ]  # fmt: skip
        seen = [chosen(config, q.tolist(), k.tolist()) for q, k in heads]

        def score(h: int, i: int, j: int, q: list[float], k: list[float], seen: Any = seen) -> float:
            scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
            return (
                scale * sum(a * b for a, b in zip(q, k, strict=True)) if j // config.block_size in seen[h][i] else -inf
            )

        outputs.append(heads_by_hand(options, w, row, score)[:1])
    return stacked(outputs, "y")


# Who sees whom --------------------------------------------------------------------------------------------------------

# Fields, inputs, and who sees whom.
CHOICES: dict[str, tuple[dict[str, Any], list[list[float]], str]] = {
    # Means of the blocks' keys, by the second number: 1, 3 and 2.
    "the nearest mean": (
        {"block_size": 2, "chosen_blocks": 1},
        [[1, 0], [1, 2], [1, 6], [-1, 0], [1, 1], [-1, 3]],
        "xxxx.. xxxx.. ..xxxx xxxx.. ..xxxx xx..xx",
    ),
    "causal": (
        {"block_size": 2, "chosen_blocks": 1, "causal": True},
        [[1, 0], [1, 2], [1, 6], [-1, 0], [1, 1], [-1, 3]],
        "x..... xx.... xxx... xxxx.. ..xxx. xx..xx",
    ),
    "the first of two that share": (
        {"block_size": 2, "chosen_blocks": 1, "causal": True, "query_block": 2},
        [[1, 0], [1, 2], [1, 6], [-1, 0], [1, 1], [-1, 3]],
        "x..... xx.... xxx... xxxx.. ..xxx. ..xxxx",
    ),
    "the earlier of equals": (
        {"block_size": 1, "chosen_blocks": 2},
        [[1, 1], [1, 1], [1, 1], [1, 1], [1, 1]],
        "xxx.. xxx.. xxx.. xx.x. xx..x",
    ),
    "a block that is not full": (
        {"block_size": 2, "chosen_blocks": 1},
        [[1, 2], [1, 2], [1, 1], [1, 1], [1, 3]],
        "xx..x xx..x ..xxx ..xxx xx..x",
    ),
    "fewer than asked for": ({"block_size": 1, "chosen_blocks": 7}, [[1, 1], [1, 2], [1, 3]], "xxx xxx xxx"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice(tree: Tree, name: str) -> None:
    """As multi-head attention under this mask, where a query is (0, its first number) and a key its input."""
    fields, x, rows = CHOICES[name]
    sizes: dict[str, Any] = {"d_model": 2, "num_heads": 1, "head_dim": 2, "value_head_dim": 1, "use_bias": False}
    w = {"w_q": np.array([[0.0, 1.0], [0.0, 0.0]])[:, None], "w_k": np.eye(2)[:, None]}
    w |= {"w_v": np.array([[0.0], [1.0]])[:, None], "w_o": np.array([[[1.0, 0.0]]])}
    inputs = {"query": np.array([x], float)}
    mask = np.array([[place == "x" for place in row] for row in rows.split()])
    want = bounded(mha.Config(**sizes), inputs | {"mask": mask}, w)["y"]
    assert ratio(tree(layer_of(tree, Config(**sizes, **fields), w), inputs)[0], want) <= 1


OTHERS = {
    "no choice": ({"block_size": 3, "chosen_blocks": 0}, chunked.Config(d_model=6, num_heads=2, chunk_size=3)),
    "every block": ({"block_size": 2, "chosen_blocks": 3}, mha.Config(d_model=6, num_heads=2)),
    "every block before": (
        {"block_size": 2, "chosen_blocks": 3, "causal": True, "query_block": 2},
        mha.Config(d_model=6, num_heads=2, causal=True),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_another_variant_at_its_ends(tree: Tree, name: str) -> None:
    """Outputs and gradients: the means of keys, which choose, send nothing back."""
    fields, other = OTHERS[name]
    config = Config(d_model=6, num_heads=2, **fields)
    w, inputs = weights_of(config), {"query": np.random.default_rng(1).normal(size=(2, 7, 6))}
    want, layer = bounded(other, inputs, w), layer_of(tree, config, w)
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, cotangent((2, 7, 6)))
    for name, x in got.items():
        # The gradient of the keys' bias is 0 but for rounding: the bound itself is asked, as no bound is small to it.
        assert np.all(np.abs(x - want[name].v) <= want[name].b) if name == "db_k" else ratio(x, want[name]) <= 1, name


def test_fields_that_cannot_be(tree: Tree) -> None:
    sizes = {"d_model": 6, "num_heads": 2, "block_size": 4, "chosen_blocks": 1}
    for name, value, words in (
        ("chosen_blocks", -1, "chosen_blocks to be an integer from 0, got -1"),
        ("chosen_blocks", True, "chosen_blocks to be an integer from 0, got True"),
        ("query_block", 3, "a query_block that divides block_size, got 3 and 4"),
        ("query_block", 0, "query_block to be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=f"block_sparse: expected {words}"):
            tree.package.build("block_sparse", **sizes | {name: value})
    shared = tree.package.build("block_sparse", **sizes, query_block=2, causal=True)
    with pytest.raises(ValueError, match="query_block=2"):
        shared.init_cache(1, 8)
