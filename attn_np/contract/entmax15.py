"""1.5-entmax attention: between softmax and sparsemax, with weights of exactly 0 and a smooth way to them."""

from dataclasses import dataclass

from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with 1.5-entmax weights.

    Attributes:
        d_model: width of the queries.
        num_heads: how many heads attend.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        key_dim: width of the key input; d_model by default.
        value_dim: width of the value input; key_dim by default.
        output_dim: width of the outputs; d_model by default.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        causal: query i sees the keys up to its own position, aligned at the last key.
        window: (left, right), how many keys before and after its own position a query sees; None is no limit.
        softcap: scores become softcap * tanh(scores / softcap).
        dropout: share of the weights set to 0 in training.
        use_bias: biases on the four projections.
    """

    class_name = "EntmaxAttention"
    family = "scores"
    title = "1.5-entmax attention"
    idea = (
        "Softmax gives every key a weight, sparsemax cuts most of them off, and at the cut its gradient jumps. "
        "Halfway between the two, a weight is the square of how far half the score lies above a threshold. Keys below "
        "the threshold weigh exactly 0, and weight and gradient both fade to 0 on the way there."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{entmax}_{1.5}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h\, w_{o,h}, \quad "
        r"\mathrm{entmax}_{1.5,j}(z) = \max\!\left(\tfrac{z_j}{2} - \tau(z), 0\right)^2, \quad \sum_j "
        r"\mathrm{entmax}_{1.5,j}(z) = 1"
    )
    notation = {
        "z": "scores",
        "alpha": "1.5; 1 is softmax, 2 is sparsemax",
        "tau(z)": "the threshold, inside the function `entmax15`",
        "M(rho), S(rho)": "mean and mean square of the rho largest z / 2, inside the same function",
        "the support": "probs > 0",
    }
    cost = "time b t s h (k + v) and the search for the threshold; memory b h t s on the textbook path"
    paper = "Peters, Niculae and Martins 2019, Sparse Sequence-to-Sequence Models, arXiv:1905.05702, algorithm 2"
    equals = ("one visible key, or one score ahead of all others by 2: the weights of `hard` attention",)
    traps = (
        "the scores are halved before the threshold and the differences squared after it: without either the weights "
        "still add up to 1",
        "half the largest score lies at most 1 above the threshold: the search for it needs no wider interval",
        "the mean square minus the squared mean cancels: in float32 long rows lose their digits",
        "the gradient is weighted by the roots of the probs, not by the probs: dp minus its mean under these roots",
        "hidden keys are removed before the sorting: a hidden score of 0 would raise the threshold",
    )

    def broken_relations(self) -> dict[str, str]:
        return {
            "twice_the_scores_square_the_weights": "the roots of the weights are linear in the scores of the support",
            "every_key_twice_changes_nothing": "more equal keys share, so the threshold falls and others come in",
        }


EXAMPLES = {
    "causal": Config(d_model=5, num_heads=3, head_dim=2, causal=True, window=(3, None), scale=0.75),
    "cross": Config(
        d_model=3, num_heads=2, head_dim=7, value_head_dim=5, key_dim=11, value_dim=13, softcap=2.5, dropout=0.25,
        use_bias=False, output_dim=17,
    ),
}  # fmt: skip
