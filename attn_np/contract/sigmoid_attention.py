"""Sigmoid attention: every key is weighed by itself, and the keys of a query do not compete."""

from dataclasses import dataclass

from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with sigmoid weights.

    Attributes:
        score_offset: number added to every score; by default -log(n) for a query that sees n keys, which is the same
            however a sequence is cut for decoding.
    """

    class_name = "SigmoidAttention"
    family = "scores"
    title = "Sigmoid attention"
    idea = (
        "Softmax makes keys compete: a weight can only rise where others fall. A sigmoid weighs every key by itself: "
        "nothing has to be summed over a row before the values are added up. Without that sum the outputs would grow "
        "with the number of keys; an offset of -log(n) on the scores makes n equal keys weigh about 1 together."
    )
    formula = (
        r"y = b_o + \sum_h \sigma\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top + b\right) v_h\, w_{o,h},"
        r"\qquad b = -\log n"
    )
    notation = {
        "b (attention bias)": "score_offset; our bias has a number for every score",
        "n (sequence length)": "how many keys a query sees: with causality a different number for each query",
        "sigma(Q K^T / sqrt(d_qk) + b)": "probs",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path"
    paper = (
        "Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431, "
        "sections 2 and 3 (there n is the length of the sequence, causal or not)"
    )
    equals = ("one visible key and an offset of 0: the sigmoid of its score, where mha gives 1",)
    traps = (
        "without the offset n random keys weigh n / 2 together at the start of training, and the outputs grow with the "
        "length",
        "-log(n) of the padded length, or of a cache's capacity, instead of the number of visible keys: the same "
        "words then give other outputs in a longer batch, and decoding differs from the full pass",
        "with a large negative number as the score of a hidden key its weight is almost 0, not 0: hide by selection",
        "the weights of a row do not add up to 1; dividing by their sum gives another function",
    )

    score_offset: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("score_offset")

    def broken_relations(self) -> dict[str, str]:
        alone = "every key is weighed by itself"
        reasons = {
            "weights_add_up_to_one": alone,
            "a_constant_on_all_scores_changes_nothing": alone,
            "twice_the_scores_square_the_weights": "a sigmoid is not an exponential over a sum",
        }
        if self.score_offset is not None:
            reasons["every_key_twice_changes_nothing"] = "twice the keys weigh twice as much with the same offset"
            reasons["indifferent_scores_share_evenly"] = alone
        else:
            reasons["every_key_twice_changes_nothing"] = "sigmoid(e - log 2n) is not half of sigmoid(e - log n)"
            reasons["indifferent_scores_share_evenly"] = "n equal keys weigh 1 / (n + 1) each"
        return reasons


EXAMPLES = {
    "causal": Config(d_model=5, num_heads=3, head_dim=7, causal=True, window=(2, None), scale=0.375),
    "fixed": Config(
        d_model=7, num_heads=2, head_dim=3, value_head_dim=11, key_dim=13, value_dim=5, softcap=1.5, dropout=0.25,
        use_bias=False, score_offset=-1.25, output_dim=17,
    ),
    "whole": Config(d_model=11, num_heads=2, head_dim=5, value_head_dim=3),
}  # fmt: skip
