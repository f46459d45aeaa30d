"""BigBird attention against scalar loops, patterns drawn by hand, and multi-head attention with a window."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attn_np.contract import chunked, mha
from attn_np.contract.bigbird import Config
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops, from section 2 of the paper ----------------------------------------------------------------------------


def graph(config: Config, t: int) -> set[tuple[int, int]]:
    """The pairs of blocks that are joined, block of the queries first."""
    count, pairs, state = -(-t // config.block_size), set(), config.graph_seed
    ends = [i for i in range(count) if i < config.global_blocks or i + config.global_blocks >= count]
    for i in range(count):
        near = [j for j in range(count) if i - config.near_blocks <= j <= i + config.near_blocks]
        rest = [j for j in range(count) if j not in near and j not in ends]
        for _ in range(config.random_blocks):
            if rest:
                state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
                chosen = rest[state // 2**33 % len(rest)]
                rest.remove(chosen)
                pairs.add((i, chosen))
        pairs |= {(i, j) for j in (*near, *ends)}
    return pairs | {(i, j) for i in ends for j in range(count)}


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w, pairs = {name: p.tolist() for name, p in params.items()}, graph(config, t)
    options, size = SimpleNamespace(causal=False, dropout=config.dropout), config.block_size

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        return scale * sum(a * b for a, b in zip(q, k, strict=True)) if (i // size, j // size) in pairs else -inf

    return stacked([heads_by_hand(options, w, row, score) for row in rows], "y", "out1")


# Who sees whom --------------------------------------------------------------------------------------------------------


OTHERS = {
    "one block": ({"block_size": 7}, mha.Config(d_model=6, num_heads=2)),
    "a window": (
        {"block_size": 1, "near_blocks": 2, "global_blocks": 0, "random_blocks": 0},
        mha.Config(d_model=6, num_heads=2, window=(2, 2)),
    ),
    "chunks": (
        {"block_size": 3, "near_blocks": 0, "global_blocks": 0, "random_blocks": 0},
        chunked.Config(d_model=6, num_heads=2, chunk_size=3),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_another_variant_at_its_ends(tree: Tree, name: str) -> None:
    fields, other = OTHERS[name]
    config = Config(d_model=6, num_heads=2, **fields)
    w, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 6))
    want = bounded(other, {"query": x}, w)["y"]
    assert ratio(tree(layer_of(tree, config, w), {"query": x})[0], want) <= 1


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_the_blocks_of_transformers() -> None:
    """Its sparse attention, told which blocks are drawn: in evaluation it sees the first block again in their place."""
    pytest.importorskip("transformers")
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    size, count, t = 3, 11, 33
    config = Config(d_model=8, num_heads=2, block_size=size, random_blocks=2, graph_seed=5)
    w, x = weights_of(config), np.random.default_rng(3).normal(size=(2, t, 8))
    w |= {"w_o": np.eye(8).reshape(2, 4, 8), "b_o": np.zeros(8)}
    fields: dict[str, Any] = {"hidden_size": 8, "num_attention_heads": 2, "block_size": size, "num_random_blocks": 2}
    theirs: Any = BigBirdBlockSparseAttention(BigBirdConfig(**fields)).double().eval()
    drawn = np.array(config.drawn_blocks(count)[1:-1])
    theirs._bigbird_block_rand_mask_with_head = lambda **_: [drawn] * config.num_heads
    for name in ("query", "key", "value"):
        weight, shift = w[f"w_{name[0]}"].reshape(8, 8).T, w[f"b_{name[0]}"].reshape(8)
        getattr(theirs, name).load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(shift)})
    blocks, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(2, t).double(), size)
    with torch.no_grad():
        y = theirs(torch.from_numpy(x), band, rows, columns, blocks, blocks)[0]
    assert (drawn >= 0).all() and ratio(y, bounded(config, {"query": x}, w)["y"]) <= 1


def test_random_blocks_are_others_and_stay() -> None:
    """Of 20 blocks: as many as asked for, no neighbours, none global, none twice; the same in every process."""
    config = Config(d_model=6, num_heads=2, block_size=4, graph_seed=7)
    rows = config.drawn_blocks(20)
    assert all(len(set(row)) == 3 for row in rows)
    assert all(0 < j < 19 and abs(i - j) > 1 for i, row in enumerate(rows) for j in row)
    assert rows[:3] == ((17, 18, 5), (4, 14, 11), (8, 4, 11))
    assert config.drawn_blocks(4)[2] == (-1, -1, -1)


def test_fields_that_cannot_be(tree: Tree) -> None:
    for name, value in (("near_blocks", -1), ("global_blocks", 1.5), ("random_blocks", True), ("graph_seed", -1)):
        with pytest.raises(ValueError, match=f"bigbird: expected {name} to be an integer from 0, got "):
            tree.package.build("bigbird", d_model=6, num_heads=2, block_size=2, **{name: value})
    with pytest.raises(ValueError, match="bigbird: expected block_size to be an integer of at least 1, got 0"):
        tree.package.build("bigbird", d_model=6, num_heads=2, block_size=0)
