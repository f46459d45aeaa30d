"""Transformer-XL's attention: contents and relative positions are scored apart, each with a bias of its own."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Param


@dataclass(frozen=True, kw_only=True)
class Config(_heads.RelativePositionConfig):
    """Fields of Transformer-XL's attention. The memory of earlier segments is the cache: see `init_cache` and `step`.

    Attributes:
        d_model: width of the queries and of the encodings of distances, an even number.
        scale: factor on the scores, both parts; 1/sqrt(head_dim) by default.
        use_bias: biases on the four projections; Transformer-XL has none, so they are off by default.
        base: the slowest sine of the encodings turns once in 2 pi base positions, or nearly.
    """

    class_name = "TransformerXLAttention"
    family = "positions"
    projects = {"w_r": False}
    title = "Transformer-XL's relative positions"
    idea = (
        "A text is read segment by segment, and each segment also looks at the cached keys of earlier ones. Positions "
        "counted within a segment would clash, so relative positions are encoded. The score has two parts, one for the "
        "key's content and one for its relative position, and two learned vectors replace the query's own position: "
        "they say how much a content, and how much a relative position, matters to any query."
    )
    formula = (
        r"e_{h,ts} = \tfrac{1}{\sqrt{K}} \left[(q_{h,t} + b^C_h) \cdot k_{h,s} + (q_{h,t} + b^P_h) \cdot R_{t-s} "
        r"w_{r,h}\right], \qquad y = b_o + \sum_h \mathrm{softmax}_s(e_h)\, v_h\, w_{o,h}"
    )
    notation = {
        "W_q, W_k,E, W_v": "w_q, w_k, w_v",
        "W_k,R": "w_r, d h k",
        "R_i-j": "a row of sines, then cosines, for each relative position, query minus key; times w_r: rel, x h k",
        "u": "b_content, h k, above b^C; (a) + (c): content_scores, of q_content = q + b_content",
        "v": "b_position, h k, above b^P; (b) + (d): position_scores, of q_position = q + b_position",
        "h~ (segments before)": "the keys and values in the cache",
    }
    cost = "time b t s h (2 k + v); memory b h t s on the textbook path, twice that without causality"
    paper = (
        "Dai, Yang, Yang, Carbonell, Le, Salakhutdinov 2019, Transformer-XL: Attentive Language Models Beyond a "
        "Fixed-Length Context, arXiv:1901.02860, section 3.3; segments: section 3.2"
    )
    equals = (
        "w_r and b_content 0: mha without biases",
        "a pass over all segments at once: the same segments one after the other, with the cache in between",
    )
    traps = (
        "the relative position is query minus key, 0 or more for earlier keys: R of its negative has other sines",
        "sines and cosines are two halves, one after the other, in the authors' code; alternating, as in the paper of "
        "the sinusoids, they need the rows of w_r in another order",
        "the trick that shifts a row for each query is right where the last query is at the last key; with a mask or "
        "other alignments it moves numbers between rows without an error",
        "u belongs to the contents and v to the distances; swapping them hardly affects training, but checkpoints no "
        "longer fit",
        "both parts are divided by sqrt(K)",
        "the gradient does not go back into earlier segments: the cache holds numbers, not their history",
    )

    use_bias: bool = False
    base: float = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("base", above=1.0)
        self.require(self.d_model % 2 == 0, "an even d_model", self.d_model, "sines come with cosines")

    def own_params(self) -> dict[str, Param]:
        more = {"w_r": Param("d h k", "d"), "b_content": Param("h k", "d"), "b_position": Param("h k", "d")}
        return super().own_params() | more


EXAMPLES = {
    "both": Config(d_model=6, num_heads=3, output_dim=5, dropout=0.25, use_bias=True, base=100.0),
    "causal": Config(d_model=10, num_heads=2, head_dim=5, value_head_dim=7, scale=0.5, causal=True),
    "cross": Config(d_model=6, num_heads=2, head_dim=5, value_head_dim=3, key_dim=13, value_dim=11, base=100.0),
}
