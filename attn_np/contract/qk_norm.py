"""Query-key normalisation: queries and keys are normalised before they are compared."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

from attn_np.contract._base import Param
from attn_np.contract._heads import CrossAttentionConfig, with_shared_heads
from attn_np.contract._norms import Norm, check_norm, idle_fields, norm_of, relations_broken_by_context_norm


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with normalised queries and keys.

    Attributes:
        scale: factor on the scores; 1/sqrt(head_dim) by default, for norm="l2" 1.0, where w_scale is the scale.
        norm: of queries and keys: "rms": divided by the root of the mean square; "layer": after the mean is subtracted;
            "l2": by the length; None: as they are.
        norm_over: "head": each head by itself, with one weight for all heads; "all": all heads of a position together;
            a number: so many neighbouring heads together. The last two have a weight for each head.
        norm_bias: the norm adds a bias, with the axes of its weight; for norm="layer".
        norm_eps: added under the root.
        context_norm: of the heads' outputs before the output projection: "rms", "layer", "l2" or None.
        context_norm_over: as norm_over.
        context_norm_weight: "shared": one weight for all heads; "own": each head has its own; None: no weight.
        context_norm_bias: as norm_bias.
        context_norm_eps: added under the root of that norm.
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
        "inner_attn_ln (Magneto), norm of EVA-02 and of timm's scale_norm": "w_context_norm_heads, "
        "b_context_norm_heads: norm=None, context_norm='layer', context_norm_over='all', context_norm_weight='own', "
        "context_norm_bias",
        "beta of q_norm and k_norm (timm's LayerNorm), norm_bias": "b_q_norm, b_k_norm; b_q_norm_heads, b_k_norm_heads",
        "g (learned scale of L2 normalisation)": "w_scale, one for each head h, sqrt(K) at the start",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path; the norms take time (b t + b s) h k"
    paper = (
        "Henry et al. 2020, Query-Key Normalization for Transformers, arXiv:2010.04245 (length 1 and a learned "
        "scale); Dehghani et al. 2023, Scaling Vision Transformers to 22 Billion Parameters, arXiv:2302.05442, "
        "section 2 (layer norm, without a bias); OLMo Team 2024, 2 OLMo 2 Furious, "
        "arXiv:2501.00656 (rms over all heads together); Wang et al. 2022, Foundation Transformers, arXiv:2210.06423 "
        "(context_norm)"
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

    norm: str | None = "rms"
    norm_over: str | int = "head"
    norm_bias: bool = False
    norm_eps: float = 1e-6
    context_norm: str | None = None
    context_norm_over: str | int = "head"
    context_norm_weight: str | None = "shared"
    context_norm_bias: bool = False
    context_norm_eps: float = 1e-6
    num_kv_heads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_groups(self.num_kv_heads)
        check_norm(self, "norm", num_heads=self.num_heads, num_kv_heads=self.num_kv_heads or self.num_heads)
        check_norm(self, "context_norm", num_heads=self.num_heads)

    def norms(self) -> tuple[Norm | None, Norm | None]:
        """The norm of queries and keys, and that of the contexts."""
        if self.norm is None:
            return None, norm_of(self, "context_norm")
        own = None if self.norm == "l2" else "shared" if self.norm_over == "head" else "own"
        norm = Norm(self.norm, self.norm_over, own, self.norm_bias, eps=self.norm_eps)
        return norm, norm_of(self, "context_norm")

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"g": self.num_kv_heads or self.num_heads}

    def scale_or_default(self, width: int) -> float:
        return 1.0 if self.scale is None and self.norm == "l2" else super().scale_or_default(width)

    def own_params(self) -> dict[str, Param]:
        params = with_shared_heads(super().own_params())
        if self.norm == "l2":
            params |= {"w_scale": Param("h", "k", init=lambda: sqrt(self.sizes()["k"]))}
        norm, context_norm = self.norms()
        params |= {} if norm is None else norm.params(q="h k", k="g k")
        return params | ({} if context_norm is None else context_norm.params(context="h v"))

    def meaning(self) -> dict[str, Any]:
        idle = (*idle_fields(self, "norm"), *idle_fields(self, "context_norm"))
        return {name: value for name, value in super().meaning().items() if name not in idle}

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s g k", "v": "b s g v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        reasons = {}
        if self.norm is not None:
            reasons["twice_the_scores_square_the_weights"] = "larger queries are normalised to the same length"
            reasons["the_scale_belongs_to_the_queries"] = "larger queries are normalised to the same length"
        if self.norm is not None and self.norm_over != "head":
            reasons["heads_stand_alone"] = "the norm of a head depends on the other heads"
        if self.context_norm is not None:
            reasons |= relations_broken_by_context_norm(self, self.context_norm_over)
        if self.norm_bias:
            reasons["indifferent_scores_share_evenly"] = "of a query that is 0 the norm leaves its bias"
        if self.norm == "l2":
            reasons["the_default_scale_is_that_of_the_head"] = "w_scale is the scale"
        return reasons


EXAMPLES = {
    "head": Config(d_model=5, num_heads=3, head_dim=7, causal=True, window=(2, None), scale=0.375, use_bias=False),
    "biases": Config(d_model=3, num_heads=2, head_dim=5, norm="layer", norm_bias=True),
    "contexts": Config(
        d_model=5, num_heads=2, head_dim=7, value_head_dim=3, key_dim=11, norm=None, context_norm="layer",
        context_norm_over="all", context_norm_weight="own", context_norm_bias=True, context_norm_eps=0.0625,
    ),
    "all": Config(
        d_model=7, num_heads=6, num_kv_heads=2, head_dim=3, value_head_dim=11, key_dim=13, value_dim=5, softcap=1.5,
        dropout=0.25, norm="layer", norm_over="all", norm_bias=True, output_dim=17, norm_eps=1e-3,
    ),
    "l2": Config(
        d_model=2, num_heads=6, num_kv_heads=3, head_dim=5, value_head_dim=7, norm="l2", causal=True,
        context_norm="layer", context_norm_bias=True,
    ),
}  # fmt: skip
