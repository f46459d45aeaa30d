"""Grouped-query attention: several query heads share one head of keys and values."""

from dataclasses import dataclass

from attn_np.contract._base import Param, Preset
from attn_np.contract._heads import CrossAttentionConfig, relations_broken_by_memory, with_shared_heads


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of grouped-query attention: those of multi-head attention and the number of key/value heads.

    Attributes:
        num_heads: how many query heads attend.
        num_kv_heads: how many heads of keys and values there are; must divide num_heads.
    """

    class_name = "GroupedQueryAttention"
    family = "heads"
    title = "Grouped-query attention"
    idea = (
        "While a model writes text, every step reads the keys and values of all positions before it, and reading them "
        "is what takes the time. If several query heads share one head of keys and values, there is less to read."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_{\lfloor h / r \rfloor}^\top\right) "
        r"v_{\lfloor h / r \rfloor}\, w_{o,h}, \quad r = H / G"
    )
    notation = {
        "G (groups)": "G = num_kv_heads, index g",
        "H (heads)": "H = num_heads, index h; head h is in group h // r",
        "d_k": "K = head_dim, axis k",
        "d_v": "V = value_head_dim, axis v",
    }
    cost = "time b t s h (k + v); the cache holds g (k + v) numbers for each position, where mha holds h (k + v)"
    paper = (
        "Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models, arXiv:2305.13245, section 2.2"
    )
    equals = (
        "num_kv_heads=num_heads: mha",
        "keys and values whose heads are equal within each group: mha",
        "num_kv_heads=1: multi-query attention",
    )
    traps = (
        "consecutive query heads share (h // r); repeating the heads as a block (h % g), or torch's repeat instead of "
        "repeat_interleave, gives the right shape and the wrong numbers",
        "the cache holds the g heads; repeating them before they are cached saves nothing",
        "the gradient of a shared head is the sum over its group",
        "to convert a trained model, the paper takes the mean of the projections in a group, not the first",
    )

    num_kv_heads: int
    memory_keys: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_groups(self.num_kv_heads)
        self.check_positive("memory_keys")

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes() | {"g": self.num_kv_heads}
        return sizes if self.memory_keys is None else sizes | {"m": self.memory_keys}

    def own_params(self) -> dict[str, Param]:
        params = with_shared_heads(super().own_params())
        if self.memory_keys is not None:
            params |= {"memory_k": Param("m g k", "k"), "memory_v": Param("m g v", "v")}
        return params

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s g k", "v": "b s g v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        return relations_broken_by_memory(self)


PRESETS = {
    "mqa": Preset(
        title="Multi-query attention",
        idea="All query heads share one head of keys and values, so the cache is as small as with a single head.",
        paper="Shazeer 2019, Fast Transformer Decoding: One Write-Head is All You Need, arXiv:1911.02150, section 3",
        fields={"num_kv_heads": 1},
    ),
}

EXAMPLES = {
    "grouped": Config(
        d_model=7, num_heads=6, num_kv_heads=3, head_dim=5, value_head_dim=2, causal=True, window=(3, None)
    ),
    "single": Config(d_model=6, num_heads=3, num_kv_heads=1, scale=1.0, use_bias=False, causal=True),
    "memory": Config(d_model=7, num_heads=6, num_kv_heads=3, head_dim=2, window=(2, 1), memory_keys=11),
    "cross": Config(
        d_model=7,
        num_heads=6,
        num_kv_heads=3,
        head_dim=2,
        value_head_dim=5,
        key_dim=13,
        value_dim=11,
        output_dim=3,
        softcap=1.5,
        dropout=0.25,
    ),
}
