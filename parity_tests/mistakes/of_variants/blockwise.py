"""Mistakes that stand in blockwise's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

plain, causal = at("blockwise.py", "blockwise", "plain"), at("blockwise.py", "blockwise", "causal")
RESCALE = "when a larger score turns up, scale what was summed before by exp(old - new), sum and values alike"
AGAIN = "in the backward compute a block's weights from the largest score and the sum over all keys"
MUTANTS = (
    plain("running sum not rescaled", RESCALE, "total = total * rescale + ", "total = total + "),
    plain("running values not rescaled", RESCALE, "sums = sums * rescale[..., None] + ", "sums = sums + "),
    plain(
        "each block by its own largest score",
        "subtract the largest score so far, not that of the block alone",
        "new_top = maximum(top, amax_detached(scores, 1))",
        "new_top = amax_detached(scores, 1)",
    ),
    causal(
        "padding of the last block not hidden",
        "hide what fills up the last block: a key of zeros has a score of 0",
        "to_blocks(allowed.swapaxes(1, 2), c.block_size)",
        "~to_blocks(~allowed.swapaxes(1, 2), c.block_size)",
    ),
    plain(
        "last block dropped",
        "round the number of blocks up: the last one may have fewer keys",
        "xs = to_blocks(k, c.block_size), to_blocks(v, c.block_size), to_blocks(allowed.swapaxes(1, 2), c.block_size)",
        "xs = tuple(to_blocks(x, c.block_size)[:, :-1] for x in (k, v, allowed.swapaxes(1, 2)))",
    ),
    plain(
        "share of all keys left out of a block's gradient",
        "subtract sum p dp over all keys, which is dy . y, from every block's dp",
        "part_of_softmax_vjp(probs, dprobs, mean_dprobs[:, None], num_blocks)",
        "part_of_softmax_vjp(probs, dprobs, 0.0 * mean_dprobs[:, None], num_blocks)",
        trees=NUMPY,
    ),
    plain(
        "gradient of the queries from the last block alone",
        AGAIN,
        "return dq + dq_block, ",
        "return dq_block, ",
        trees=NUMPY,
    ),
)
