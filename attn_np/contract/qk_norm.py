"""Query-key normalisation: queries and keys are normalised before they are compared."""

from dataclasses import dataclass
from math import sqrt

from attn_np.contract._base import Param
from attn_np.contract._heads import CrossAttentionConfig, with_shared_heads


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with normalised queries and keys.

    Attributes:
        d_model: width of the queries.
        num_heads: how many heads attend.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        key_dim: width of the key input; d_model by default.
        value_dim: width of the value input; key_dim by default.
        output_dim: width of the outputs; d_model by default.
        scale: factor on the scores; 1/sqrt(head_dim) by default, for norm="l2" 1.0, where w_scale is the scale.
        causal: query i sees the keys up to its own position, aligned at the last key.
        window: (left, right), how many keys before and after its own position a query sees; None is no limit.
        softcap: scores become softcap * tanh(scores / softcap).
        dropout: share of the weights set to 0 in training.
        use_bias: biases on the four projections.
        norm: "rms": divided by the root of the mean square; "layer": after the mean is subtracted; "l2": by the length.
        norm_over: "head": each head by itself, with one weight for all heads; "all": all heads of a position together.
        norm_eps: added under the root.
        num_kv_heads: how many heads of keys and values there are; num_heads by default, which it must divide.
    """

    class_name = "QKNormAttention"
    family = "scores"
    title = "Query-key normalisation"
    idea = (
        "Scores are products of two vectors that training may let grow without limit; the softmax then saturates and "
        "gradients vanish or explode. Normalised, queries and keys can only differ in direction: no score is larger "
        "than the learned weights allow, and large models train stably."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, \hat q_h \hat k_h^\top\right) v_h\, w_{o,h},"
        r"\qquad \hat q = \frac{q}{\sqrt{\mathrm{mean}(q^2) + \epsilon}} \odot w"
    )
    notation = {
        "LN(X W^Q), LN(X W^K)": 'q_norm, k_norm with norm="layer"; before: q_proj, k_proj',
        "gamma of q_norm and k_norm (Qwen3), norm_over=head": "w_q_norm, w_k_norm, axis k",
        "gamma of q_norm and k_norm (OLMo 2), norm_over=all": "w_q_norm_heads, axes h k; w_k_norm_heads, axes g k",
        "g (learned scale of L2 normalisation)": "w_scale, one for each head h, sqrt(K) at the start",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path; the norms take time (b t + b s) h k"
    paper = (
        "Henry et al. 2020, Query-Key Normalization for Transformers, arXiv:2010.04245 (length 1 and a learned "
        "scale); Dehghani et al. 2023, Scaling Vision Transformers to 22 Billion Parameters, arXiv:2302.05442, "
        "section 2 (layer norm, here without its bias); OLMo Team 2024, 2 OLMo 2 Furious, "
        "arXiv:2501.00656 (rms over all heads together)"
    )
    equals = ('norm_over="all" with num_heads=1 and num_kv_heads=1: norm_over="head"',)
    traps = (
        "over each head or over all heads together: Qwen3 has the one, OLMo 2 the other, and with equal weights the "
        "shapes of the results are the same",
        "the norm comes before rotation by position and before the key is cached: a cache of unnormalised keys decodes "
        "something else",
        "queries of length 1 and the scale 1/sqrt(K) make all scores tiny: the learned scale replaces it",
        "1 + w and w are both in use as weights of rms norms",
    )

    norm: str = "rms"
    norm_over: str = "head"
    norm_eps: float = 1e-6
    num_kv_heads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_of("norm", ("rms", "layer", "l2"))
        self.check_one_of("norm_over", ("head", "all"))
        self.check_number("norm_eps", above=0.0)
        self.check_groups(self.num_kv_heads)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"g": self.num_kv_heads or self.num_heads}

    def scale_or_default(self, width: int) -> float:
        return 1.0 if self.scale is None and self.norm == "l2" else super().scale_or_default(width)

    def own_params(self) -> dict[str, Param]:
        params = with_shared_heads(super().own_params())
        if self.norm == "l2":
            return params | {"w_scale": Param("h", "k", init=lambda: sqrt(self.sizes()["k"]))}
        if self.norm_over == "head":
            return params | {name: Param("k", "k", init=1.0) for name in ("w_q_norm", "w_k_norm")}
        axes_of = {"w_q_norm_heads": "h k", "w_k_norm_heads": "g k"}
        return params | {name: Param(axes, "k", init=1.0) for name, axes in axes_of.items()}

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s g k", "v": "b s g v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        reasons = {
            "twice_the_scores_square_the_weights": "larger queries are normalised to the same length",
            "the_scale_belongs_to_the_queries": "larger queries are normalised to the same length",
        }
        if self.norm_over == "all":
            reasons["heads_stand_alone"] = "the norm of a head depends on the other heads"
        if self.norm == "l2":
            reasons["the_default_scale_is_that_of_the_head"] = "w_scale is the scale"
        return reasons


EXAMPLES = {
    "head": Config(d_model=5, num_heads=3, head_dim=7, causal=True, window=(2, None), scale=0.375, use_bias=False),
    "all": Config(
        d_model=7, num_heads=6, num_kv_heads=2, head_dim=3, value_head_dim=11, key_dim=13, value_dim=5, softcap=1.5,
        dropout=0.25, norm="layer", norm_over="all", output_dim=17, norm_eps=1e-3,
    ),
    "l2": Config(
        d_model=11, num_heads=6, num_kv_heads=3, head_dim=5, value_head_dim=2, norm="l2", causal=True,
    ),
}  # fmt: skip
