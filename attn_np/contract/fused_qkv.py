"""Attention with a fused projection: one product makes queries, keys and values together."""

from dataclasses import dataclass

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param
from attn_np.contract._heads import relations_broken_by_memory


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of attention with a fused projection.

    Attributes:
        num_heads: how many heads attend.
        head_dim: width of a head's queries, keys and values; d_model / num_heads by default, which must then
            divide.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        causal: a position sees itself and earlier ones.
        window: (left, right), how many positions before and after its own a query sees; None is no limit.
        use_bias: biases on the projections.
        use_output: a last projection; without it the output is the heads side by side.
        output_dim: width of the outputs of that projection; d_model by default.
    """

    class_name = "FusedQKVAttention"
    family = "dense"
    title = "Fused query-key-value attention"
    idea = (
        "Self-attention projects the same input three times. Stacking the three weights into one array does "
        "it in one larger product, which keeps a processor busier; nothing else changes."
    )
    formula = (
        r"[q\; k\; v] = x\, w_{qkv} + b_{qkv}, \qquad "
        r"y_h = \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h; \qquad "
        r"\text{with output: } \sum_h y_h\, w_{o,h} + b_o"
    )
    notation = {
        "W^Q, W^K, W^V": "w_qkv[:, 0], w_qkv[:, 1], w_qkv[:, 2]; axis p",
        "W^O": "w_o",
        "h (number of heads)": "H = num_heads, index h",
        "d_k = d_v": "K = head_dim, axis k",
    }
    cost = "time b t t h k and one projection of 3 h k columns; memory b h t t on the textbook path"
    paper = (
        "Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, section 3.2.2; the joint array "
        "is a layout, not another formula"
    )
    equals = (
        "num_heads=1: self_attention with w_q, w_k, w_v stacked",
        "with an output projection: mha with w_q, w_k, w_v stacked",
    )
    traps = (
        "files order the joint columns as (3, heads, width), here and in torch.nn.MultiheadAttention, or as "
        "(heads, 3, width), as in GPT-NeoX: the shape is the same and the numbers are wrong",
        "splitting the joint columns before the heads are told apart needs the order of the file, not of the code",
        "initial values that depend on the number of columns, such as Glorot's, come out smaller for the "
        "joint array than for three separate ones",
        "dividing by sqrt(K) after the softmax instead of before shrinks the output and leaves the scores unscaled",
        "an input of keys that differ from the queries can't use the joint product: cross-attention needs mha",
    )

    d_model: int
    num_heads: int = 1
    head_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    use_bias: bool = True
    use_output: bool = False
    output_dim: int | None = None
    memory_keys: int | None = None

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "head_dim", "output_dim", "memory_keys")
        self.check_number("scale")
        self.check_number("softcap", above=0.0)
        self.check_window("window")
        self.check_rate("dropout")
        self.check_flag("causal", "use_bias", "use_output")
        self.check_divisible("d_model", "num_heads", unless="head_dim")
        self.require(
            self.use_output or self.output_dim is None,
            "no output_dim without use_output",
            f"output_dim={self.output_dim}",
            "set use_output=True, or leave it out: the output is the heads side by side",
        )

    def sizes(self) -> dict[str, int]:
        sizes = {
            "d": self.d_model,
            "p": 3,
            "h": self.num_heads,
            "k": self.head_dim or self.d_model // self.num_heads,
            "o": self.output_dim or self.d_model,
        }
        return sizes if self.memory_keys is None else sizes | {"m": self.memory_keys}

    def own_params(self) -> dict[str, Param]:
        params = {"w_qkv": Param("d p h k", "d")}
        if self.use_output:
            params |= {"w_o": Param("h k o", "h k")}
        if self.use_bias:
            params |= {"b_qkv": Param("p h k", "d")}
        if self.use_bias and self.use_output:
            params |= {"b_o": Param("o", "h k")}
        if self.memory_keys is not None:
            params |= {"memory_k": Param("m h k", "k"), "memory_v": Param("m h k", "k")}
        return params

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "mask": Arg("b h t t", "mask", optional=True),
            "bias": Arg("b h t t", "bias", optional=True),
            "keep": Arg("b h t t", "keep", optional=True),
        }

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s h k", "v": "b s h k"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        return relations_broken_by_memory(self)


EXAMPLES = {
    "single": Config(d_model=7),
    "heads": Config(d_model=7, num_heads=5, head_dim=3, dropout=0.25, use_output=True),
    "causal": Config(d_model=5, num_heads=2, head_dim=7, scale=1.0, causal=True, use_bias=False),
    "capped": Config(d_model=7, num_heads=2, head_dim=5, window=(2, 1), softcap=1.5, use_output=True, output_dim=3),
    "memory": Config(d_model=7, num_heads=2, head_dim=3, window=(2, 1), memory_keys=11),
}
