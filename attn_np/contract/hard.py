"""Hard attention: every query takes one key only; a softmax serves for the gradient, if there is one."""

from dataclasses import dataclass

from attn_np.contract._base import Arg
from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with one key for each query.

    Attributes:
        estimator: "straight_through": the gradient is that of a softmax; "argmax": the choice has no gradient, and
            queries and keys get none.
        temperature: the softmax that gives the gradient is that of scores / temperature.
    """

    class_name = "HardAttention"
    family = "scores"
    title = "Hard attention"
    idea = (
        "Softmax blurs all values into one. Hard attention takes the value of one key, the one that scores highest; "
        "with Gumbel noise added to the scores that is a draw by the softmax's own probabilities. A choice has no "
        "slope, so learning borrows one: forward the choice, backward the softmax."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{onehot}\!\left(\arg\max_j z_{hj}\right) v_h\, w_{o,h}, \quad z_h = "
        r"\tfrac{1}{\sqrt{K}}\, q_h k_h^\top + g_h, \quad \frac{\partial\, \mathrm{onehot}}{\partial z} := "
        r"\frac{\partial\, \mathrm{softmax}(z / \tau)}{\partial z}"
    )
    notation = {
        "s_t,i (the chosen place)": "probs",
        "g_i, Gumbel noise": "noise = -log(-log(u)) for u uniform in (0, 1), which the caller draws",
        "log pi_i + g_i": "noisy",
        "tau": "temperature",
        "y (the relaxed sample)": "soft",
        "z (the sample)": "probs",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path"
    paper = (
        "Xu et al. 2015, Show, Attend and Tell, arXiv:1502.03044, section 4.1; the draw by noise: Maddison, Mnih and "
        "Teh 2016, arXiv:1611.00712, section 2; its gradient: Jang, Gu and Poole 2016, arXiv:1611.01144, section 2.2"
    )
    equals = ("one visible key, or a scale so large that one key takes all: `mha`",)
    traps = (
        "hard - stop_gradient(soft) + soft rounds: the weights are no longer 0 and 1; hard + (soft - "
        "stop_gradient(soft)) is exact",
        "the temperature changes the gradient alone: the largest of scores / temperature is the same",
        "the softmax of the gradient is that of the noisy scores, not of the scores without noise",
        "hidden keys are removed before the choice: if a hidden score were the largest, the query would get nothing",
        "of equal scores the first is chosen; rounding makes equal keys unequal, so which one it is means little",
        "softmax of the scores times their temperature, not divided by it",
    )

    estimator: str = "straight_through"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_of("estimator", ("straight_through", "argmax"))
        self.check_number("temperature", above=0.0)
        self.require(
            self.estimator == "straight_through" or self.temperature == 1.0,
            "temperature=1.0 with estimator='argmax'",
            f"temperature={self.temperature}",
            "leave it out: no softmax is computed",
        )

    def arguments(self) -> dict[str, Arg]:
        arguments = super().arguments()
        keep = arguments.pop("keep")
        return arguments | {"noise": Arg("b h t s", "bias", optional=True), "keep": keep}

    def broken_relations(self) -> dict[str, str]:
        return {
            "indifferent_scores_share_evenly": "of equal scores the first is chosen",
            "twice_the_scores_square_the_weights": "the largest score stays the largest, and its weight is 1",
            "the_last_bits_are_felt": "queries and keys only decide, and a small change does not change the choice",
        }


EXAMPLES = {
    "causal": Config(d_model=5, num_heads=3, head_dim=2, causal=True, window=(3, None), scale=0.75, temperature=0.5),
    "cross": Config(
        d_model=3, num_heads=2, head_dim=7, value_head_dim=5, key_dim=11, value_dim=13, softcap=2.5, dropout=0.25,
        use_bias=False, temperature=1.5, output_dim=17,
    ),
    "argmax": Config(d_model=7, num_heads=2, head_dim=3, estimator="argmax"),
}  # fmt: skip
