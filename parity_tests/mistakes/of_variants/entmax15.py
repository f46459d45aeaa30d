"""Mistakes that stand in entmax15's own file, or that its examples alone can show."""

from attn_np.contract.entmax15 import EXAMPLES
from parity_tests.mistakes.plant import at

causal, cross = (at("entmax15.py", "entmax15", example) for example in EXAMPLES)
MUTANTS = (
    causal(
        "softmax in the place of 1.5-entmax",
        "square how far half the scores lie above the threshold: weights below it are 0",
        "return entmax15(scores, allowed)",
        "return softmax(scores, allowed)",
        needs=("softmax",),
    ),
    causal(
        "sparsemax in the place of 1.5-entmax",
        "halve the scores before the threshold and square what lies above it",
        "return entmax15(scores, allowed)",
        "return sparsemax(scores, allowed)",
        needs=("sparsemax",),
    ),
    cross(
        "scores not halved before 1.5-entmax",
        "halve the scores before the threshold: alpha - 1 is 1/2",
        "return entmax15(scores, allowed)",
        "return entmax15(2.0 * scores, allowed)",
    ),
    cross(
        "hidden keys take part in the 1.5-entmax",
        "take hidden keys away before the threshold is computed, not after",
        "return entmax15(scores, allowed)",
        "return where(allowed, entmax15(scores), 0.0)",
        needs=("where",),
    ),
    causal(
        "gradient of 1.5-entmax weighted by the probs",
        "weigh the gradients by the square roots of the probs, in the product and in the mean",
        "return entmax15_vjp(probs, dprobs), {}",
        "return entmax15_vjp(probs * probs, dprobs), {}",
        trees=("attn_np",),
    ),
    cross(
        "gradient of sparsemax for 1.5-entmax",
        "a weight of p passes on sqrt(p) of its gradient: only sparsemax passes it on whole",
        "return entmax15_vjp(probs, dprobs), {}",
        "return where(probs > 0, entmax15_vjp(where(probs > 0, 1.0, 0.0), dprobs), 0.0), {}",
        trees=("attn_np",),
        needs=("where",),
    ),
)
