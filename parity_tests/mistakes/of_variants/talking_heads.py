"""Mistakes that stand in talking_heads's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

MIXED_SCORES = 'mixed_scores=einsum("gh,bgts->bhts", self.w_mix_scores, scores)'
MIXED_WEIGHTS = 'mixed_weights=einsum("hg,bhts->bgts", self.w_mix_weights, kept)'
scores, weights = (at("talking_heads.py", "talking_heads", example) for example in ("scores", "weights"))
MUTANTS = (
    scores(
        "scores mixed by the transposed map",
        "sum the scores over the first axis of the map, the heads; its second are the softmaxes",
        MIXED_SCORES,
        MIXED_SCORES.replace("gh,", "hg,"),
    ),
    weights(
        "weights mixed by the transposed map",
        "sum the weights over the first axis of the map, the softmaxes; its second are the heads",
        MIXED_WEIGHTS,
        MIXED_WEIGHTS.replace("hg,", "gh,"),
    ),
    scores(
        "scores masked before they are mixed",
        "hide keys after the scores are mixed, or what is hidden in one head shows in the others",
        MIXED_SCORES,
        MIXED_SCORES.replace(", scores)", ", where(hide_neg_inf(allowed, bias), scores, 0.0))"),
        needs=("where",),
    ),
    weights(
        "dropout behind the mixing of the weights",
        "drop the weights of the softmaxes, then mix them",
        MIXED_WEIGHTS,
        'mixed_weights=dropout(einsum("hg,bhts->bgts", self.w_mix_weights, probs), keep, c.dropout)',
    ),
    weights(
        "mixed weights returned",
        "return the weights of the softmaxes, before they are mixed",
        "return context, probs",
        "return context, mixed_weights",
    ),
    scores(
        "bias added before the scores are mixed",
        "mix the scores of the heads alone; the bias belongs to the softmaxes",
        f"{MIXED_SCORES})\n",
        f'{MIXED_SCORES} + (0.0 if bias is None else einsum("gh,bgts->bhts", self.w_mix_scores, bias) - bias))\n',
    ),
    scores(
        "gradient of the scores not mixed back",
        "send the gradient of the mixed scores back through the map",
        'dparams["w_mix_scores"], dscores = einsum_vjp(',
        'dparams["w_mix_scores"], _ = einsum_vjp(',
        trees=NUMPY,
    ),
)
