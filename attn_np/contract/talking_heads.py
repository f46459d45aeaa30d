"""Talking-heads attention: learned maps across the heads, before and after the softmax."""

from dataclasses import dataclass

from attn_np.contract._base import Param
from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of talking-heads attention: those of multi-head attention, and which maps there are.

    Attributes:
        num_heads: how many heads of queries, keys and values there are.
        softcap: mixed scores become softcap * tanh(scores / softcap).
        dropout: share of the weights set to 0 in training, before they are mixed.
        softmax_heads: how many softmaxes there are; num_heads by default. Mask, bias and weights have as many heads.
        mix_scores: map the scores of the heads to those of the softmaxes.
        mix_weights: map the weights of the softmaxes to those of the heads.
    """

    class_name = "TalkingHeadsAttention"
    family = "heads"
    projects = {"w_mix_scores": False, "w_mix_weights": False}
    title = "Talking-heads attention"
    idea = (
        "Heads attend independently and know nothing of each other. Here each softmax gets a mixture of the scores of "
        "all heads, and each head of values a mixture of all the weights."
    )
    formula = (
        r"y = b_o + \sum_g \left(\sum_h a_h\, w^{W}_{h g}\right) v_g\, w_{o,g}, \quad "
        r"a_h = \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}} \sum_g q_g k_g^\top\, w^{S}_{g h}\right)"
    )
    notation = {
        "h_k, h_v (heads of keys and of values)": "G = num_heads, index g, for both",
        "h (heads of the softmax)": "H = softmax_heads, index h",
        "P_l [h_k, h]": "w_mix_scores",
        "P_w [h, h_v]": "w_mix_weights",
        "J, L, W, U": "scores, mixed_scores, probs, mixed_weights",
        "d_k, d_v": "K = head_dim, axis k; V = value_head_dim, axis v",
    }
    cost = "time b t s (g (k + v) + 2 g h); memory b t s (g + h) on the textbook path"
    paper = "Shazeer et al. 2020, Talking-Heads Attention, arXiv:2003.02436, sections 3 and 4"
    equals = (
        "mix_scores=False, mix_weights=False: mha",
        "identity matrices for both maps: mha",
    )
    traps = (
        "masking before the scores are mixed spreads a hidden score of -inf over all heads",
        "the mask, the bias and the returned weights are those of the softmaxes, not of the projected heads",
        "dropout is on the weights of the softmaxes, before they are mixed",
        "the two maps have their axes the other way round: from heads to softmaxes, and back",
    )

    softmax_heads: int | None = None
    mix_scores: bool = True
    mix_weights: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("softmax_heads")
        self.check_flag("mix_scores", "mix_weights")
        self.require(
            self.softmax_heads in (None, self.num_heads) or (self.mix_scores and self.mix_weights),
            "as many softmax_heads as num_heads where scores or weights are not mixed",
            f"softmax_heads={self.softmax_heads}, num_heads={self.num_heads}",
            "leave softmax_heads out or mix both",
        )

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"g": self.num_heads, "h": self.softmax_heads or self.num_heads}

    def own_params(self) -> dict[str, Param]:
        weights = {
            name: Param(param.axes.replace("h", "g"), param.fan_axes.replace("h", "g"))
            for name, param in super().own_params().items()
        }
        weights |= {"w_mix_scores": Param("g h", "g")} if self.mix_scores else {}
        return weights | ({"w_mix_weights": Param("h g", "h")} if self.mix_weights else {})

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s g k", "v": "b s g v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        return {
            "heads_stand_alone": "the heads are mixed",
            "the_output_is_the_weights_times_the_values": "the returned weights are those before they are mixed",
        }


EXAMPLES = {
    "cross": Config(
        d_model=7,
        num_heads=2,
        head_dim=5,
        value_head_dim=3,
        key_dim=11,
        value_dim=13,
        output_dim=17,
        causal=True,
        softcap=1.5,
        softmax_heads=3,
    ),
    "scores": Config(d_model=6, num_heads=3, scale=1.0, window=(3, 1), use_bias=False, mix_weights=False),
    "weights": Config(d_model=5, num_heads=2, head_dim=3, causal=True, dropout=0.25, mix_scores=False),
}
