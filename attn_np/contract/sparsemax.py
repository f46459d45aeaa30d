"""Sparsemax attention: the nearest point of the simplex instead of the softmax, so that most weights are 0."""

from dataclasses import dataclass

from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with sparsemax weights.

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

    class_name = "SparsemaxAttention"
    family = "scores"
    title = "Sparsemax attention"
    idea = (
        "Softmax gives every key a little, however badly it fits. Sparsemax takes the point of the simplex that is "
        "nearest to the scores: keys below a threshold weigh exactly 0, the others keep their differences, and the "
        "threshold is where they add up to 1."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{sparsemax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h\, w_{o,h}, \quad "
        r"\mathrm{sparsemax}_j(z) = \max(z_j - \tau(z), 0), \quad \tau(z) = \max_n \tfrac{1}{n}\left(\sum_{i \le n} "
        r"z_{(i)} - 1\right)"
    )
    notation = {
        "z": "scores",
        "z_(i)": "the scores from the largest to the smallest",
        "tau(z)": "the threshold, inside the function `sparsemax`",
        "S(z), the support": "probs > 0",
    }
    cost = "time b t s h (k + v) and the search for the threshold; memory b h t s on the textbook path"
    paper = (
        "Martins and Astudillo 2016, From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label "
        "Classification, arXiv:1602.02068, algorithm 1 and equation 11"
    )
    equals = ("one visible key, or one score ahead of all others by 1: the weights of `hard` attention",)
    traps = (
        "twice the scores do not square the weights: the scale decides how many keys get any weight",
        "hidden keys are removed before the sorting: a hidden score of 0 would raise the threshold",
        "the gradient is dp minus its mean over the support, not over all keys",
        "a key outside the support gets no gradient, however near it was",
    )

    def broken_relations(self) -> dict[str, str]:
        return {
            "twice_the_scores_square_the_weights": "the weights are linear in the scores of the support",
            "every_key_twice_changes_nothing": "more equal keys share, so the threshold falls and others come in",
        }


EXAMPLES = {
    "causal": Config(d_model=5, num_heads=3, head_dim=7, causal=True, window=(2, None), scale=0.375),
    "cross": Config(
        d_model=7, num_heads=2, head_dim=3, value_head_dim=11, key_dim=13, value_dim=5, softcap=1.5, dropout=0.25,
        use_bias=False, output_dim=17,
    ),
}  # fmt: skip
