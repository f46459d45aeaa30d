"""Mistakes that stand in prefix's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, allowing, at

split, wide = at("prefix.py", "prefix", "split"), at("prefix.py", "prefix", "wide")
NEAR = "Prefix(prefix) | Causal()"
BORDER = "the prefix has as many positions as its number says: those below it, counted from 0"
MUTANTS = (
    split(
        "prefix one position too long",
        BORDER,
        "Prefix(prefix)",
        allowing("Prefix", "key <= self.length") + "(prefix)",
    ),
    split(
        "prefix seen by what follows it alone",
        "let the prefix see itself in both directions, or it stays causal",
        NEAR,
        "Causal()",
    ),
    wide(
        "prefix that sees everything",
        "hide what follows the prefix from it: only keys are in the prefix or not",
        "Prefix(prefix)",
        allowing("Prefix", "(key < self.length) | (query < self.length)") + "(prefix)",
    ),
    split(
        "prefix of the first sequence used for all",
        "give each sequence of a batch the length of its own prefix",
        "Prefix(prefix)",
        "Prefix(0 * prefix + prefix[:1])",
    ),
    split(
        "prefix forgotten where a mask is given",
        "apply the given mask and the prefix together",
        NEAR,
        f"({NEAR}) if call.mask is None else None",
    ),
    wide(
        "scale of a prefix's scores left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "back.attend(dcontext)",
        "back.attend(dcontext, scale=1.0)",
        trees=NUMPY,
    ),
)
