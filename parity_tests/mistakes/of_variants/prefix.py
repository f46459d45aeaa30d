"""Mistakes that stand in prefix's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

split, wide = at("prefix.py", "prefix", "split"), at("prefix.py", "prefix", "wide")
NEAR = "visible = in_prefix[:, None, :] | (key_positions[:, None, :] <= query_positions[:, :, None])"
BORDER = "the prefix has as many positions as its number says: those below it, counted from 0"
MUTANTS = (
    split(
        "prefix one position too long",
        BORDER,
        "in_prefix = key_positions < prefix[:, None]",
        "in_prefix = key_positions <= prefix[:, None]",
    ),
    split(
        "prefix seen by what follows it alone",
        "let the prefix see itself in both directions, or it stays causal",
        NEAR,
        "visible = key_positions[:, None, :] <= query_positions[:, :, None] + 0 * prefix[:, None, None]",
    ),
    wide(
        "prefix that sees everything",
        "hide what follows the prefix from it: only keys are in the prefix or not",
        NEAR,
        "visible = in_prefix[:, :, None] | in_prefix[:, None, :]"
        " | (key_positions[:, None, :] <= query_positions[:, :, None])",
    ),
    split(
        "prefix of the first sequence used for all",
        "give each sequence of a batch the length of its own prefix",
        "in_prefix = key_positions < prefix[:, None]",
        "in_prefix = key_positions < prefix[:1, None]",
    ),
    split(
        "prefix forgotten where a mask is given",
        "apply the given mask and the prefix together",
        "visible[:, None] & mask",
        "mask",
    ),
    wide(
        "scale of a prefix's scores left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)",
        "attend_vjp(tape, dcontext, scale=1.0, rate=c.dropout)",
        trees=NUMPY,
    ),
)
