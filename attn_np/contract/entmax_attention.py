"""Entmax attention: sparsemax, 1.5-entmax and what lies between, with weights of exactly 0 for keys that fit badly."""

from dataclasses import dataclass

from attn_np.contract._base import Preset
from attn_np.contract._heads import CrossAttentionConfig
from attn_np.contract._weighing import Weighing


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with entmax weights.

    Attributes:
        alpha: how sparse the weights are, from 1: softmax at 1, 1.5-entmax, sparsemax at 2.
    """

    class_name = "EntmaxAttention"
    family = "scores"
    title = "Entmax attention"
    idea = (
        "Softmax gives every key a little, however badly it fits. Entmax cuts scores off at a threshold: keys below it "
        "weigh exactly 0, those above it a power of how far they lie above, and the threshold is where the weights add "
        "up to 1. At alpha 2, sparsemax, the power is 1: the nearest point of the simplex. At 1.5 it is the square, so "
        "that weight and gradient fade to 0 at the threshold; towards 1 the weights become those of the softmax."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{entmax}_\alpha\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h\, w_{o,h}, "
        r"\quad \mathrm{entmax}_{\alpha,j}(z) = \max\!\left((\alpha - 1) z_j - \tau(z), 0\right)^{1 / (\alpha - 1)}, "
        r"\quad \sum_j \mathrm{entmax}_{\alpha,j}(z) = 1"
    )
    notation = {
        "z": "scores",
        "tau(z)": "the threshold, inside the function `entmax_over`",
        "z_(i)": "the scores from the largest to the smallest, inside the functions `sparsemax` and `entmax15`",
        "M(rho), S(rho)": "mean and mean square of the rho largest z / 2, inside the function `entmax15`",
        "S(z), the support": "probs > 0",
    }
    cost = "time b t s h (k + v) and the search for the threshold; memory b h t s on the textbook path"
    paper = (
        "Peters, Niculae and Martins 2019, Sparse Sequence-to-Sequence Models, arXiv:1905.05702, equation 10 and "
        "algorithm 2; for sparsemax Martins and Astudillo 2016, arXiv:1602.02068, algorithm 1 and equation 11"
    )
    equals = (
        "one visible key, or one score ahead of all others by 1 / (alpha - 1): the weights of `hard` attention",
        "alpha=1: the weights of `mha`",
    )
    traps = (
        "twice the scores do not square the weights: the scale decides how many keys get any weight",
        "hidden keys are removed before the threshold is searched: a hidden score of 0 would raise it",
        "1.5-entmax: the scores are halved before the threshold and the differences squared after it: without either "
        "the weights still add up to 1",
        "1.5-entmax: the mean square minus the squared mean cancels: in float32 long rows lose their digits",
        "the gradient is weighted by probs^(2 - alpha): for sparsemax dp minus its mean over the support, for "
        "1.5-entmax under the roots of the probs",
        "a key outside the support gets no gradient, however near it was",
    )

    alpha: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("alpha")
        fix = "1 is softmax, 2 is sparsemax"
        self.require(self.alpha >= 1, "alpha to be a finite number from 1", f"alpha={self.alpha}", fix)

    def weighing(self, head_dim: int) -> Weighing | None:
        """How long calls weigh in place, block by block; None for an alpha whose threshold has no closed form."""
        name = {1.5: "entmax15", 2.0: "sparsemax"}.get(self.alpha)
        return None if name is None else Weighing(name, self.scale_or_default(head_dim), self.softcap)

    def broken_relations(self) -> dict[str, str]:
        if self.alpha == 1:
            return {}
        return {
            "twice_the_scores_square_the_weights": "powers of the weights are linear in the scores of the support",
            "every_key_twice_changes_nothing": "more equal keys share, so the threshold falls and others come in",
        }


PRESETS = {
    "entmax15": Preset(
        title="1.5-entmax attention",
        idea=(
            "Halfway between softmax and sparsemax a weight is the square of how far half the score lies above a "
            "threshold: exactly 0 below it, and weight and gradient both fade to 0 on the way there."
        ),
        paper="Peters, Niculae and Martins 2019, Sparse Sequence-to-Sequence Models, arXiv:1905.05702, algorithm 2",
        fields={"alpha": 1.5},
    ),
    "sparsemax": Preset(
        title="Sparsemax attention",
        idea=(
            "The weights are the point of the simplex that is nearest to the scores: keys below a threshold weigh "
            "exactly 0, the others keep their differences."
        ),
        paper=(
            "Martins and Astudillo 2016, From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label "
            "Classification, arXiv:1602.02068, algorithm 1 and equation 11"
        ),
        fields={"alpha": 2.0},
    ),
}

EXAMPLES = {
    "causal": Config(d_model=5, num_heads=3, head_dim=7, alpha=2.0, causal=True, window=(2, None), scale=0.375),
    "cross": Config(
        d_model=3, num_heads=2, head_dim=7, value_head_dim=5, key_dim=11, value_dim=13, softcap=2.5, dropout=0.25,
        use_bias=False, output_dim=17,
    ),
    "between": Config(d_model=5, num_heads=2, head_dim=3, alpha=1.25, causal=True, window=(3, None), scale=0.75),
}  # fmt: skip
