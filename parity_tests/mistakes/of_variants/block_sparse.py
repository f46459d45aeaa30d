"""Mistakes that stand in block-sparse attention's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

both, causal, together = (at("block_sparse.py", "block_sparse", example) for example in ("both", "causal", "together"))
MUTANTS = (
    both(
        "blocks chosen by the sum of their keys",
        "divide the sum of a block's keys by the positions that it has: the last block may have fewer",
        " / where(num_keys == 0, 1.0, num_keys)",
        "",
    ),
    both(
        "own block scored like the others",
        "the own block is seen in any case: leave it out of the choice, or it takes the place of another",
        "blocks != own, (b,",
        "blocks >= 0 * own, (b,",
    ),
    causal(
        "choice among later blocks too",
        "choose among the blocks before the query's own: causality would hide the others, and fewer would be seen",
        "blocks < own if c.causal else blocks != own",
        "blocks != own",
    ),
    causal(
        "one choice for all heads",
        "every head chooses by its own queries and keys",
        "chosen = chosen.reshape(b * h, t, n)",
        "chosen = broadcast_to(chosen[:, :1], (b, h, t, n)).reshape(b * h, t, n)",
    ),
    causal(
        "least affinity chosen",
        "choose the blocks with the largest product of query and mean key",
        "chosen = top_k_indices(affinity,",
        "chosen = top_k_indices(-affinity,",
    ),
    together(
        "own block seen as a whole",
        "within its own block a query sees no later key",
        "pattern & Causal() if c.causal else pattern",
        "pattern",
    ),
    causal(
        "a chosen block forgotten",
        "a query sees every block that it chose",
        "for i in range(c.chosen_blocks):",
        "for i in range(1, c.chosen_blocks):",
    ),
    together(
        "first choice shared by all queries",
        "query_block queries in a row share the choice of the first of them, the next ones make their own",
        "arange(t, q) // c.query_block]",
        "arange(t, q) // c.query_block * 0]",
    ),
    causal(
        "scale left out of the backward of chosen blocks",
        "multiply the gradient of the scores by the scale, too",
        "attend_vjp(tape, heads_as_batch(dcontext), scale=c.scale)",
        "attend_vjp(tape, heads_as_batch(dcontext), scale=1.0)",
        trees=NUMPY,
    ),
)
