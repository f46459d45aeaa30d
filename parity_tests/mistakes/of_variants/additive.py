"""Mistakes that stand in additive's own file."""

from parity_tests.mistakes.plant import at

causal = at("additive.py", "additive", "causal")
ROWS = "self.attend_rows, q, k, value"
MUTANTS = (
    causal(
        "later keys seen by the additive score",
        "hide the keys after a query's own position before the softmax",
        ROWS,
        f"{ROWS}, causal=False",
    ),
    causal(
        "next key seen by the additive score",
        "a query sees the keys up to its own position, and not the one behind it",
        ROWS,
        f"{ROWS}, causal=False, window=(None, 1)",
    ),
    at("additive.py", "additive", "cross")(
        "tanh of query and key each",
        "put tanh around the sum of projected query and key, not around each",
        "features=tanh(q[:, :, None, :] + k[:, None, :, :])",
        "features=tanh(q[:, :, None, :]) + tanh(k[:, None, :, :])",
    ),
)
