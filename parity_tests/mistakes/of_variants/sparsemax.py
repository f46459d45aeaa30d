"""Mistakes that stand in sparsemax's own file, or that its examples alone can show."""

from attn_np.contract.sparsemax import EXAMPLES
from parity_tests.mistakes.plant import at

causal, cross = (at("sparsemax.py", "sparsemax", example) for example in EXAMPLES)
MUTANTS = (
    causal(
        "softmax in the place of sparsemax",
        "project the scores onto the simplex: weights below the threshold are 0",
        "return sparsemax(scores, allowed)",
        "return softmax(scores, allowed)",
        needs=("softmax",),
    ),
    cross(
        "hidden keys take part in the sparsemax",
        "take hidden keys away before the threshold is computed, not after",
        "return sparsemax(scores, allowed)",
        "return where(allowed, sparsemax(scores), 0.0)",
        needs=("where",),
    ),
    cross(
        "sparsemax over the queries",
        "project each query's scores over the keys, the last axis",
        "return sparsemax(scores, allowed)",
        "return sparsemax(scores, allowed, -2)",
    ),
    cross(
        "sparsemax of twice the scores",
        "scale the scores once: sparsemax depends on their size more than softmax does",
        "return sparsemax(scores, allowed)",
        "return sparsemax(2.0 * scores, allowed)",
    ),
    causal(
        "gradient of the softmax for sparsemax",
        "the gradient is dp minus its mean over the support, and 0 beside it",
        "return sparsemax_vjp(probs, dprobs), {}",
        "return probs * (dprobs - einsum('bhts,bhts->bht', probs, dprobs)[..., None]), {}",
        trees=("attn_np",),
        needs=("einsum",),
    ),
)
