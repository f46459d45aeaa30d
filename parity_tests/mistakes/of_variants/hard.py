"""Mistakes that stand in hard's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

causal, cross = (at("hard.py", "hard", example) for example in ("causal", "cross"))
MUTANTS = (
    causal(
        "hidden keys take part in the choice",
        "take hidden keys away before the largest score is searched, not after",
        "hard = hardmax(noisy, allowed)",
        "hard = where(allowed, hardmax(noisy), 0.0)",
        needs=("where",),
    ),
    cross(
        "soft weights go forward",
        "forward takes the one key that was chosen; the softmax is there for the gradient alone",
        "return straight_through(hard, record(tape, soft=softmax(noisy / c.temperature, allowed)))",
        "return record(tape, soft=softmax(noisy / c.temperature, allowed))",
    ),
    causal(
        "the smallest score is chosen",
        "take the largest score: noise and bias are added, none is a distance",
        "hard = hardmax(noisy, allowed)",
        "hard = hardmax(-noisy, allowed)",
    ),
    cross(
        "noise left out of the choice",
        "add the noise to the scores before the choice, and take the gradient at the noisy scores",
        "record(tape, noisy=scores + noise)",
        "record(tape, noisy=scores + 0.0 * noise)",
    ),
    cross(
        "scores times the temperature",
        "divide the scores by the temperature: a small one makes the softmax steep",
        "softmax(noisy / c.temperature, allowed)",
        "softmax(noisy * c.temperature, allowed)",
        survives="the softmax gives the gradient alone, and the witness has none",
    ),
    causal(
        "the temperature left out of the gradient",
        "the softmax is that of scores / temperature: its gradient is divided by the temperature once more",
        'dnoisy = softmax_vjp(tape["soft"], dsoft) / self.config.temperature',
        'dnoisy = softmax_vjp(tape["soft"], dsoft)',
        trees=("attn_np",),
    ),
)
