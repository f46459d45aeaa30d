"""Mistakes that stand in sigmoid_attention's own file, or that its examples alone can show."""

from attn_np.contract.sigmoid_attention import EXAMPLES
from parity_tests.mistakes.plant import at

causal, fixed, whole = (at("sigmoid_attention.py", "sigmoid_attention", example) for example in EXAMPLES)
SHIFT = "shifted = scores - log(maximum(count, 1.0))[..., None]"
MUTANTS = (
    whole(
        "no offset on the scores of a sigmoid",
        "add -log(n) to the scores, n the number of keys that the query sees",
        SHIFT,
        "shifted = scores - 0.0 * log(maximum(count, 1.0))[..., None]",
    ),
    whole(
        "log n added in place of subtracted",
        "the offset is -log(n): it makes the weights smaller",
        SHIFT,
        "shifted = scores + log(maximum(count, 1.0))[..., None]",
    ),
    causal(
        "offset from all keys in place of those in sight",
        "count the keys that each query sees, not the length of the batch or the cache",
        "visible = where(broadcast_mask(allowed, scores.shape, scores), one, 0.0)",
        "visible = where(broadcast_mask(allowed, scores.shape, scores), one, 1.0)",
    ),
    causal(
        "hidden keys weigh half",
        "select the weights of hidden keys to 0 after the sigmoid: sigmoid(0) is one half",
        "return where(allowed, sigmoid(shifted), 0.0)",
        "return sigmoid(shifted)",
    ),
    fixed(
        "weights of a sigmoid divided by their sum",
        "leave the weights as they are: in sigmoid attention they do not add up to 1",
        "return where(allowed, sigmoid(shifted), 0.0)",
        "return softmax(where(allowed, log(sigmoid(shifted)), 0.0), allowed)",
        needs=("softmax",),
    ),
    fixed(
        "configured offset ignored",
        "add the offset that the config gives",
        "shifted = scores + self.config.score_offset",
        "shifted = scores + 0.0",
    ),
)
