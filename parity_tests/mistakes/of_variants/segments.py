"""Mistakes that stand in segments's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, allowing, at

both, causal = at("segments.py", "segments", "both"), at("segments.py", "segments", "causal")
ARRAYS = "(segments, call.cached(segments=segments))"
NEAR = f"Documents{ARRAYS}"
MUTANTS = (
    both(
        "documents packed before the own one seen, too",
        "compare the numbers of the documents for equality",
        NEAR,
        allowing("Documents", "self.query_documents >= self.key_documents") + ARRAYS,
    ),
    both(
        "keys of all the other documents seen instead of the own ones",
        "True = may attend: a query sees the keys with the number of its own document",
        NEAR,
        allowing("Documents", "self.query_documents != self.key_documents") + ARRAYS,
    ),
    both(
        "documents of the first batch row used for all rows",
        "every sequence of a batch is packed in its own way",
        NEAR,
        "Documents(0 * segments + segments[:1], 0 * segments + segments[:1])",
    ),
    causal(
        "documents forgotten where a mask is given",
        "apply the given mask and the borders of the documents together",
        NEAR,
        f"{NEAR} if call.mask is None else None",
    ),
    causal(
        "causality forgotten within a document",
        "documents do not order their words: apply the causal mask, too",
        "call.attend(q, k, v)",
        "call.attend(q, k, v, causal=False)",
    ),
    both(
        "gradient of a document's values without those dropped",
        "drop in the backward what the forward dropped, and divide by the same share",
        "back.attend(dcontext)",
        "back.attend(dcontext, rate=0.0)",
        trees=NUMPY,
    ),
)
