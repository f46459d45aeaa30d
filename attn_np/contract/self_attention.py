"""Self-attention: every position of one sequence looks at all its positions, with a single head."""

from dataclasses import dataclass

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of self-attention with one head.

    Attributes:
        head_dim: width of queries and keys; d_model by default.
        value_head_dim: width of the values, and of the output if there is no output projection; head_dim by
            default.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        causal: a position sees itself and earlier ones.
        window: (left, right), how many positions before and after its own a query sees; None is no limit.
        use_bias: biases on the projections.
        use_output: a last projection, from value_head_dim to output_dim.
        output_dim: width of the outputs of that projection; d_model by default.
    """

    class_name = "SelfAttention"
    family = "dense"
    title = "Self-attention"
    idea = (
        "Each position asks a question (its query), offers a description (its key) and a content (its "
        "value), all three made from the same input by projections of their own. It answers itself with the "
        "average content of the positions whose description fits its question."
    )
    formula = (
        r"y = \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q k^\top\right) v, \qquad "
        r"q = x w_q + b_q,\; k = x w_k + b_k,\; v = x w_v + b_v; \qquad \text{with output: } y\, w_o + b_o"
    )
    notation = {
        "X or H (input)": "query, called x on the tape",
        "W^Q, W^K, W^V, W^O": "w_q, w_k, w_v, w_o",
        "d_k": "K = head_dim, axis k",
        "d_v": "V = value_head_dim, axis v",
    }
    cost = "time b t t (k + v) and the projections; memory b t t on the textbook path"
    paper = "Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, sections 3.2.1 and 3.2.3"
    equals = (
        "with an output projection: mha with num_heads=1 and the head axis dropped",
        "with one joint projection: fused_qkv with num_heads=1",
    )
    traps = (
        "dividing by sqrt(K) after the softmax instead of before shrinks the output and leaves the scores unscaled",
        "multiplying the values by the scores and forgetting the softmax gives the right shape",
        "a mask on query rows, (b, t, 1), hides no key; padding is hidden on the key axis, (b, 1, t)",
        "transposing keys by a reshape from (b, t, k) to (b, k, t) mixes positions and widths and raises no error",
        "dropout at 0.8 in training mode sets most outputs of a short sequence to 0: examples belong in "
        "evaluation mode",
    )

    d_model: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    use_bias: bool = True
    use_output: bool = False
    output_dim: int | None = None

    def __post_init__(self) -> None:
        self.check_positive("d_model", "head_dim", "value_head_dim", "output_dim")
        self.check_number("scale")
        self.check_number("softcap", above=0.0)
        self.check_window("window")
        self.check_rate("dropout")
        self.check_flag("causal", "use_bias", "use_output")
        self.require(
            self.use_output or self.output_dim is None,
            "no output_dim without use_output",
            f"output_dim={self.output_dim}",
            "set use_output=True, or leave it out: the output has the width of the values",
        )

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model
        return {"d": self.d_model, "k": k, "v": self.value_head_dim or k, "o": self.output_dim or self.d_model}

    def own_params(self) -> dict[str, Param]:
        params = {"w_q": Param("d k", "d"), "w_k": Param("d k", "d"), "w_v": Param("d v", "d")}
        if self.use_output:
            params |= {"w_o": Param("v o", "v")}
        if self.use_bias:
            params |= {"b_q": Param("k", "d"), "b_k": Param("k", "d"), "b_v": Param("v", "d")}
        if self.use_bias and self.use_output:
            params |= {"b_o": Param("o", "v")}
        return params

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "mask": Arg("b t t", "mask", optional=True),
            "bias": Arg("b t t", "bias", optional=True),
            "keep": Arg("b t t", "keep", optional=True),
        }

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s k", "v": "b s v"} if self.causal else {}


EXAMPLES = {
    "plain": Config(d_model=7),
    "output": Config(d_model=7, head_dim=5, value_head_dim=3, scale=1.0, dropout=0.25, use_output=True, output_dim=11),
    "causal": Config(d_model=5, head_dim=11, causal=True, use_bias=False, use_output=True),
    "capped": Config(d_model=5, head_dim=3, value_head_dim=13, window=(2, 1), softcap=1.5),
}
