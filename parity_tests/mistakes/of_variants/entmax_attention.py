"""Mistakes that stand in entmax attention's own file, or that its examples alone can show."""

from attn_np.contract.entmax_attention import EXAMPLES
from parity_tests.mistakes.plant import at

# sparsemax, 1.5-entmax, and an alpha without a closed form
causal, cross, between = (at("entmax_attention.py", "entmax_attention", example) for example in EXAMPLES)
WEIGHTS, GRADIENT = (
    "entmax_over(scores, allowed, self.config.alpha, -1)",
    "entmax_over_vjp(probs, dprobs, self.config.alpha, -1), {}",
)
MUTANTS = (
    causal(
        "softmax in the place of sparsemax",
        "project the scores onto the simplex: weights below the threshold are 0",
        WEIGHTS,
        "softmax(scores, allowed)",
        needs=("softmax",),
    ),
    cross(
        "softmax in the place of 1.5-entmax",
        "square how far half the scores lie above the threshold: weights below it are 0",
        WEIGHTS,
        "softmax(scores, allowed)",
        needs=("softmax",),
    ),
    cross(
        "sparsemax in the place of 1.5-entmax",
        "halve the scores before the threshold and square what lies above it",
        WEIGHTS,
        "entmax_over(scores, allowed, 2, -1)",
    ),
    between(
        "1.5-entmax in the place of another alpha",
        "weights are the power 1 / (alpha - 1) of how far (alpha - 1) times a score lies above the threshold",
        WEIGHTS,
        "entmax_over(scores, allowed, 1.5, -1)",
    ),
    cross(
        "scores not halved before 1.5-entmax",
        "halve the scores before the threshold: alpha - 1 is 1/2",
        WEIGHTS,
        "entmax_over(2.0 * scores, allowed, self.config.alpha, -1)",
    ),
    causal(
        "sparsemax of twice the scores",
        "scale the scores once: sparsemax depends on their size more than softmax does",
        WEIGHTS,
        "entmax_over(2.0 * scores, allowed, self.config.alpha, -1)",
    ),
    cross(
        "hidden keys take part in the entmax",
        "take hidden keys away before the threshold is computed, not after",
        WEIGHTS,
        "where(allowed, entmax_over(scores, None, self.config.alpha, -1), 0.0)",
        needs=("where",),
    ),
    causal(
        "sparsemax over the queries",
        "project each query's scores over the keys, the last axis",
        WEIGHTS,
        "entmax_over(scores, allowed, self.config.alpha, -2)",
    ),
    causal(
        "gradient of the softmax for sparsemax",
        "the gradient is dp minus its mean over the support, and 0 beside it",
        GRADIENT,
        "probs * (dprobs - einsum('bhts,bhts->bht', probs, dprobs)[..., None]), {}",
        trees=("attn_np",),
        needs=("einsum",),
    ),
    cross(
        "gradient of 1.5-entmax weighted by the probs",
        "weigh the gradients by the square roots of the probs, in the product and in the mean",
        GRADIENT,
        "entmax_over_vjp(probs * probs, dprobs, self.config.alpha, -1), {}",
        trees=("attn_np",),
    ),
    cross(
        "gradient of sparsemax for 1.5-entmax",
        "a weight of p passes on sqrt(p) of its gradient: only sparsemax passes it on whole",
        GRADIENT,
        "entmax_over_vjp(probs, dprobs, 2, -1), {}",
        trees=("attn_np",),
    ),
)
