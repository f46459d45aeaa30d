"""Mistakes that stand in additive's own file."""

from parity_tests.mistakes.plant import at

causal = at("additive.py", "additive", "causal")
MASK = 'attention_mask(mask, sizes["t"], k.shape[1], like=query, head_axis=False, **by_position)'
MUTANTS = (
    causal(
        "later keys seen by the additive score",
        "hide the keys after a query's own position before the softmax",
        MASK,
        "mask",
    ),
    causal(
        "next key seen by the additive score",
        "a query sees the keys up to its own position, and not the one behind it",
        MASK,
        'attention_mask(mask, sizes["t"], k.shape[1], like=query, head_axis=False, window=(None, 1), step=step)',
    ),
)
