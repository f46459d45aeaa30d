"""Mistakes that stand in bigbird's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

drawn, wide, ends = (at("bigbird.py", "bigbird", example) for example in ("drawn", "wide", "ends"))
ENDS = "(block < c.global_blocks) | (block >= num_blocks - c.global_blocks)"
MUTANTS = (
    ends(
        "global blocks at the beginning alone",
        "the last blocks are global as well as the first",
        ENDS,
        "block < c.global_blocks",
    ),
    ends(
        "global queries that see their own neighbours only",
        "global blocks see everything as well as being seen",
        "| GlobalQueries(is_global)",
        "",
    ),
    ends(
        "global positions that are counted, not blocks",
        "global_blocks counts blocks, at each end",
        "c.global_blocks) | (block",
        "c.global_blocks + 1) | (block",
    ),
    wide(
        "window of blocks to the left alone",
        "without causality the window reaches as many blocks to the right",
        "c.near_blocks, c.near_blocks)",
        "c.near_blocks, 0)",
    ),
    wide(
        "random blocks of another block of queries",
        "every block of queries has its own random blocks: index them by the query's position // block_size",
        "drawn_blocks(c, num_blocks, like=block)[block]",
        "drawn_blocks(c, num_blocks, like=block)[num_blocks - 1 - block]",
    ),
    wide(
        "a random block forgotten",
        "each block sees random_blocks more blocks",
        "for i in range(c.random_blocks):",
        "for i in range(1, c.random_blocks):",
    ),
    drawn(
        "blocks drawn with another seed",
        "keep the seed with the weights: other blocks are another graph",
        "drawn_blocks(c, num_blocks, like=block)[block]",
        "drawn_blocks(type(c)(**c.as_dict() | {'graph_seed': c.graph_seed + 1}), num_blocks, like=block)[block]",
    ),
    drawn(
        "dropped weights kept in the backward of random blocks",
        "drop in the backward what the forward dropped, and divide by the same share",
        "back.attend(dcontext)",
        "back.attend(dcontext, rate=0.0)",
        trees=NUMPY,
    ),
)
