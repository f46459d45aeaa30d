"""Mistakes that stand in segments's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

both, causal = at("segments.py", "segments", "both"), at("segments.py", "segments", "causal")
NEAR = "same_segment = segments[:, :, None] == key_segments[:, None, :]"
MUTANTS = (
    both(
        "documents packed before the own one seen, too",
        "compare the numbers of the documents for equality",
        NEAR,
        NEAR.replace("==", ">="),
    ),
    both(
        "keys of all the other documents seen instead of the own ones",
        "True = may attend: a query sees the keys with the number of its own document",
        NEAR,
        NEAR.replace("==", "!="),
    ),
    both(
        "documents of the first batch row used for all rows",
        "every sequence of a batch is packed in its own way",
        NEAR,
        "same_segment = segments[:1, :, None] == key_segments[:1, None, :]",
    ),
    causal(
        "documents forgotten where a mask is given",
        "apply the given mask and the borders of the documents together",
        "same_segment[:, None] & mask",
        "mask",
    ),
    causal(
        "causality forgotten within a document",
        "documents do not order their words: apply the causal mask, too",
        "bias=bias, causal=c.causal,",
        "bias=bias, causal=False,",
    ),
    both(
        "gradient of a document's values without those dropped",
        "drop in the backward what the forward dropped, and divide by the same share",
        "attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)",
        "attend_vjp(tape, dcontext, scale=c.scale)",
        trees=NUMPY,
    ),
)
