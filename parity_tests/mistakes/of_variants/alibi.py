"""Mistakes that stand in alibi's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

causal, both = at("alibi.py", "alibi", "causal"), at("alibi.py", "alibi", "both")
MUTANTS = (
    causal(
        "distances added instead of taken off",
        "lower a score by its distance: the bias of ALiBi is negative",
        "alibi=-constants(",
        "alibi=constants(",
    ),
    both(
        "distances with a sign",
        "without causality take the absolute distance, or later keys are raised",
        "abs(relative_position)",
        "-relative_position",
    ),
    causal(
        "slopes of the heads in reverse",
        "give the first head the first slope of the sequence",
        "constants(c.slopes(), q)",
        "constants(c.slopes()[::-1], q)",
    ),
    causal(
        "slopes of a plain geometric sequence for heads that are no power of two",
        "take the slopes of the next lower power of two, then every second one of twice that power",
        "constants(c.slopes(), q)",
        "constants([2.0 ** (-8 * (h + 1) / c.num_heads) for h in range(c.num_heads)], q)",
    ),
    causal(
        "linear biases scaled with the scores",
        "add the linear biases after the scores were scaled",
        "* distance[:, None])\n",
        "* distance[:, None] * (q.shape[-1] ** -0.5 if c.scale is None else c.scale))\n",
    ),
    causal(
        "given bias lost beside the linear biases",
        "add both biases",
        "relative_bias_fn=relative_bias_fn",
        "relative_bias_fn=relative_bias_fn, bias=None",
        example="both",
        raises=("attn_torch",),
    ),
)
