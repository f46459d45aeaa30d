"""Multi-head attention: several heads attend in parallel, each in a subspace of its own."""

from dataclasses import dataclass

from attn_np.contract import _attend
from attn_np.contract._base import Param, Preset
from attn_np.contract._heads import CrossAttentionConfig, relations_broken_by_memory


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention.

    Attributes:
        normalize_over: "keys": the weights of each query add up to 1; "queries": those of each key do. Such a layer
            does not decode: later queries would change the weights.
    """

    class_name = "MultiHeadAttention"
    family = "dense"
    title = "Multi-head attention"
    idea = (
        "One head can look at one thing at a time. Several heads, each with projections of its own, look at several "
        "things at once; a last projection mixes their outputs."
    )
    formula = r"y = b_o + \sum_h \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h\, w_{o,h}"
    notation = {
        "h (number of heads)": "H = num_heads, index h",
        "d_k": "K = head_dim, axis k",
        "d_v": "V = value_head_dim, axis v",
        "W_i^Q, W_i^K, W_i^V": "w_q[:, h], w_k[:, h], w_v[:, h]",
        "W^O": "w_o",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path"
    paper = "Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, section 3.2.2"
    equals = ("num_heads=1: self_attention with an output projection", "one joint projection: fused_qkv")
    traps = (
        "splitting a projection as (k h) instead of (h k) mixes the heads and raises no error",
        "a boolean mask is True = may attend here; torch.nn.MultiheadAttention means the opposite",
        "merging heads without moving the head axis back gives the right shape and the wrong numbers",
    )

    memory_keys: int | None = None
    normalize_over: str = "keys"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("memory_keys")
        self.check_one_of("normalize_over", tuple(_attend.SOFTMAX_AXIS))
        self.require(
            self.memory_keys is None or self.normalize_over == "keys",
            "normalize_over='keys' with memory_keys=",
            repr(self.normalize_over),
            "leave one of them out",
        )

    def sizes(self) -> dict[str, int]:
        return super().sizes() | ({} if self.memory_keys is None else {"m": self.memory_keys})

    def own_params(self) -> dict[str, Param]:
        params = super().own_params()
        if self.memory_keys is not None:
            params |= {"memory_k": Param("m h k", "k"), "memory_v": Param("m h v", "v")}
        return params

    def cache_axes(self) -> dict[str, str]:
        return super().cache_axes() if self.normalize_over == "keys" else {}

    def broken_relations(self) -> dict[str, str]:
        return relations_broken_by_memory(self)


PRESETS = {
    "sliding_window": Preset(
        title="Sliding-window attention",
        idea=(
            "A query sees itself and a fixed number of keys before it; information from further back reaches it "
            "through the layers below, so that cost and cache stop growing with the text."
        ),
        paper=(
            "Jiang et al. 2023, Mistral 7B, arXiv:2310.06825, section 2, with W = 4096; "
            "Beltagy et al. 2020, Longformer, arXiv:2004.05150, section 3.1"
        ),
        fields={"causal": True, "window": (4095, 0)},
    ),
    "softcap": Preset(
        title="Attention with capped scores",
        idea="A tanh keeps every score between -50 and 50, so that none can grow without limit in training.",
        paper="Gemma Team 2024, Gemma 2, arXiv:2408.00118, section 2",
        fields={"softcap": 50.0},
    ),
}

EXAMPLES = {
    "split": Config(d_model=6, num_heads=2),
    "wide": Config(d_model=7, num_heads=3, head_dim=7, scale=1.0, use_bias=False, causal=True),
    "cross": Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=11, key_dim=13, value_dim=2, dropout=0.25),
    "capped": Config(
        d_model=7, num_heads=2, head_dim=3, window=(2, 1), softcap=1.5, output_dim=5, normalize_over="queries"
    ),
    "memory": Config(d_model=7, num_heads=2, head_dim=3, window=(2, 1), memory_keys=11),
}
