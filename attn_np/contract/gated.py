"""Gated attention: every head's output is multiplied by a gate that is computed from the layer's input."""

from dataclasses import dataclass

from attn_np.contract._base import Param
from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of gated attention: those of multi-head attention and the kind of gate.

    Attributes:
        use_bias: biases on the four projections and on the gates.
        gate: "element": one gate for every dimension of a head's output; "head": one gate for all of them.
    """

    class_name = "GatedAttention"
    family = "dense"
    title = "Gated attention"
    idea = (
        "A softmax must look somewhere, even where nothing is worth it. A gate after the average lets each position "
        "say how much of its heads' outputs it takes, and no key has to serve as a place to look away to."
    )
    formula = (
        r"y = b_o + \sum_h \left(\mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h \odot "
        r"\sigma(x\, w_{g,h} + b_{g,h})\right) w_{o,h}"
    )
    notation = {
        "X (input of the layer)": "query",
        "W_theta (gate)": "w_gate, b_gate",
        "Y (output of SDPA)": "context",
        "Y' = Y * sigma(X W_theta)": "gated = context * gate",
        "n (number of heads)": "H = num_heads, index h",
        "d_k": "K = head_dim, axis k; V = value_head_dim, axis v; width of a gate, axis f: V or 1",
    }
    cost = "time b t s h (k + v) + b t d h f for the gates; memory b h t s on the textbook path"
    paper = (
        "Qiu et al. 2025, Gated Attention for Large Language Models: Non-linearity, Sparsity, and "
        "Attention-Sink-Free, arXiv:2505.06708, section 2.2, equation 5, position G1"
    )
    equals = ("gates wide open: mha", "gates without weights and biases: mha with half of its w_o")
    traps = (
        "the gate is computed from the layer's input, not from the projected query and not from the head's output",
        "the gate comes before the output projection: after it, the heads would be mixed already",
        "each head has its own gates, also with gate='head'",
        "sigmoid alone: SiLU would multiply by the gate's score once more",
    )

    gate: str = "element"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_of("gate", ("element", "head"))

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {"f": sizes["v"] if self.gate == "element" else 1}

    def own_params(self) -> dict[str, Param]:
        weights = super().own_params() | {"w_gate": Param("d h f", "d")}
        return weights | {"b_gate": Param("h f", "d")} if self.use_bias else weights

    def broken_relations(self) -> dict[str, str]:
        return {"the_output_is_the_weights_times_the_values": "gates come between the heads and the output"}


EXAMPLES = {
    "element": Config(
        d_model=7,
        num_heads=3,
        head_dim=5,
        value_head_dim=2,
        key_dim=13,
        value_dim=11,
        output_dim=3,
        softcap=1.5,
        dropout=0.25,
    ),
    "head": Config(d_model=6, num_heads=2, scale=1.0, causal=True, window=(3, None), use_bias=False, gate="head"),
}
