"""Relative position representations (Shaw): a learned vector for each one is added to keys and values."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Param


@dataclass(frozen=True, kw_only=True)
class Config(_heads.RelativePositionConfig):
    """Fields of attention with relative position representations.

    Attributes:
        scale: factor on the scores, positions included; 1/sqrt(head_dim) by default.
        max_distance: offsets beyond it, on either side, are clipped to it.
        use_values: vectors of relative positions for the values too, not for the keys alone.
    """

    class_name = "ShawAttention"
    family = "positions"
    title = "Relative position representations (Shaw)"
    idea = (
        "A pair of words is joined by an edge that knows how far apart they are and which comes first. For each such "
        "relative position up to a limit a vector is learned: added to the key it changes how well the pair fits, "
        "added to the value it changes what is passed on. All heads share the vectors."
    )
    formula = (
        r"e_{h,ts} = \tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot \left(k_{h,s} + a^K_{s - t}\right), \qquad "
        r"y_t = b_o + \sum_h \sum_s \mathrm{softmax}_s(e_{h,ts}) \left(v_{h,s} + a^V_{s - t}\right) w_{o,h}"
    )
    notation = {
        "k (clipping distance)": "max_distance; 2 max_distance + 1 rows, axis x, the middle one for j = i",
        "w^K": "w_rel_k, x k; a^K_ij is its row clip(j - i) + max_distance: rel_k, b t s k",
        "w^V": "w_rel_v, x v; a^V_ij: rel_v, b t s v",
        "e_ij, alpha_ij, z_i": "scores (content and position, scaled), probs, context",
        "q . a^K": "position_scores, before the scale; q . k is content_scores",
    }
    cost = "time b t s h (k + v), twice; memory b t s (h + k + v) on the textbook path, for the vectors of all pairs"
    paper = (
        "Shaw, Uszkoreit, Vaswani 2018, Self-Attention with Relative Position Representations, arXiv:1803.02155, "
        "sections 3.1 and 3.2"
    )
    equals = ("with all vectors 0: mha",)
    traps = (
        "the row of a pair is that of key minus query; the other sign swaps earlier and later keys, and a model "
        "without causality trains all the same",
        "scaling the products of queries and keys before the position part is added: both are divided by sqrt(K)",
        "offsets are clipped before the lookup: without it JAX reads the last row, NumPy and PyTorch wrap or fail",
        "the vectors of the values are averaged by the weights after dropout, as the values are",
        "a table for each head, or of width d_model: the paper's is of a head's width and shared by all heads",
    )

    max_distance: int = 16
    use_values: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("max_distance")
        self.check_flag("use_values")

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"x": 2 * self.max_distance + 1}

    def own_params(self) -> dict[str, Param]:
        keys = {"w_rel_k": Param("x k", "k")}
        values = {"w_rel_v": Param("x v", "v")} if self.use_values else {}
        return super().own_params() | keys | values

    def broken_relations(self) -> dict[str, str]:
        if not self.use_values:
            return super().broken_relations()
        added = "a vector for the relative position is added to values"
        return super().broken_relations() | {"the_output_is_the_weights_times_the_values": added}


EXAMPLES = {
    "both": Config(d_model=6, num_heads=3, output_dim=7, max_distance=1, dropout=0.25),
    "causal": Config(
        d_model=5, num_heads=2, head_dim=3, value_head_dim=7, scale=0.75, causal=True, use_bias=False, max_distance=6
    ),
    "keys": Config(d_model=7, num_heads=2, head_dim=5, max_distance=8, use_values=False),
    "cross": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, key_dim=13, value_dim=11, max_distance=2),
}
