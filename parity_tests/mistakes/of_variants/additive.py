"""Mistakes that stand in additive's own file."""

from parity_tests.mistakes.plant import at

causal = at("additive.py", "additive", "causal")
MASK = "k, v, mask=mask, **masking"
MUTANTS = (
    causal(
        "later keys seen by the additive score",
        "hide the keys after a query's own position before the softmax",
        MASK,
        "k, v, mask=mask, step=step",
    ),
    causal(
        "next key seen by the additive score",
        "a query sees the keys up to its own position, and not the one behind it",
        MASK,
        "k, v, mask=mask, window=(None, 1), step=step",
    ),
    at("additive.py", "additive", "cross")(
        "tanh of query and key each",
        "put tanh around the sum of projected query and key, not around each",
        "features=tanh(q[:, :, None, :] + k[:, None, :, :])",
        "features=tanh(q[:, :, None, :]) + tanh(k[:, None, :, :])",
    ),
)
