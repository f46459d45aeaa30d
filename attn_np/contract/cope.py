"""Contextual position encoding (CoPE): a key's position is the number of keys from it to the query, each counted by a
gate between 0 and 1.
"""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Param

GATES = ("keys", "own_keys", "values")


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Heads):
    """Fields of attention with contextual positions.

    Attributes:
        scale: factor on the products of queries and keys, in the scores and in the gates; 1/sqrt(head_dim) by default.
        use_bias: biases on the projections.
        num_positions: rows of the table; a position is at most num_positions - 1.
        gate_with: what a query is multiplied with to decide whether a key counts: the "keys", "own_keys", a projection
            for this purpose alone, or the "values".
        scale_positions: the scale multiplies the products of queries and table as well, as in the authors' code.
    """

    class_name = "ContextualPositionAttention"
    family = "positions"
    title = "Contextual position encoding (CoPE)"
    idea = (
        "A position need not count tokens: it may count words, sentences or whatever matters. Each query decides by "
        "gates between 0 and 1 which keys count, and a key's position is the sum of the gates from it to the query. "
        "Such a position is seldom whole, so the score it adds is interpolated between its two learned neighbours."
    )
    formula = (
        r"g_{h,ts} = \sigma\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s}\right), \qquad "
        r"p_{h,ts} = \min\Big(\sum_{r=s}^{t} g_{h,tr},\; X - 1\Big), \qquad "
        r"y_t = b_o + \sum_h \mathrm{softmax}_{s \le t}\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s} "
        r"+ q_{h,t} \cdot e[p_{h,ts}]\right) v_h\, w_{o,h}"
    )
    notation = {
        "g_ij": "gates, b h t s; 0 for a key that is hidden",
        "p_ij": "gate_sums; positions once they are clipped",
        "p_max, npos_max": "num_positions; rows of w_pos, axis x, from position 0 on",
        "e[p]": "w_pos, x k; between two rows e[p] is (1 - w) e[floor p] + w e[floor p + 1] for w = p - floor p",
        "z_i[p]": "position_products, q . e for every row; interpolated: position_scores",
    }
    cost = "time b h t (t (k + v) + x k); memory b h t (t + x) on the textbook path"
    paper = (
        "Golovneva, Wang, Weston, Sukhbaatar 2024, Contextual Position Encoding: Learning to Count What's Important, "
        "arXiv:2405.18719, section 4; where the scale applies as in its listing, which divides the products of queries "
        "and keys by sqrt(K), takes the gates of these, and adds the position part unscaled"
    )
    equals = (
        "all rows of the table alike: mha with causal=True",
        "gates of 1: a learned relative position, clipped; the key at the query has position 1",
    )
    traps = (
        "the query's own key counts too: its position is its gate, not 0",
        "a hidden key has gate 0: it moves no other key, whatever it holds",
        "the gates take the scaled products: without 1/sqrt(K) they saturate, and positions become counts of tokens",
        "the position part is not divided by sqrt(K) in the paper's listing and is in the authors' code: "
        "scale_positions",
        "summed from the left, or from the key after this one, positions are those of other keys",
        "positions are clipped before the lookup: beyond the table JAX reads the last row, NumPy and PyTorch fail",
        "one table for all heads of a layer, of a head's width",
        "in 16 bits a sum of gates loses the digits that it is interpolated by: it is kept in float32",
    )
    # Not a field: positions count backwards from the query, so later keys have none.
    causal = True

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    dropout: float = 0.0
    use_bias: bool = True
    num_positions: int = 64
    gate_with: str = "keys"
    scale_positions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_positions")
        self.check_one_of("gate_with", GATES)
        self.check_flag("scale_positions")
        widths = self.sizes()
        self.require(
            self.gate_with != "values" or widths["k"] == widths["v"],
            "keys and values of one width with gate_with='values'",
            f"{widths['k']} and {widths['v']}",
            "leave value_head_dim out",
        )

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"x": self.num_positions}

    def own_params(self) -> dict[str, Param]:
        params = super().own_params() | {"w_pos": Param("x k", "k")}
        if self.gate_with == "own_keys":
            params |= {"w_gate_k": Param("d h k", "d")}
            params |= {"b_gate_k": Param("h k", "d")} if self.use_bias else {}
        return params

    def cache_axes(self) -> dict[str, str]:
        own = {"gate_k": "b s h k"} if self.gate_with == "own_keys" else {}
        return {"k": "b s h k", "v": "b s h v"} | own

    def broken_relations(self) -> dict[str, str]:
        reasons = {
            "a_large_bias_decides": "the first query sees one key, whatever its bias",
            "twice_the_scores_square_the_weights": "twice the products of queries and keys move the positions, too",
        }
        unscaled = {"the_scale_belongs_to_the_queries": "the products of queries and table are not scaled"}
        return reasons if self.scale_positions else reasons | unscaled


EXAMPLES = {
    "clipped": Config(d_model=6, num_heads=3, output_dim=7, num_positions=3, dropout=0.25),
    "own_keys": Config(
        d_model=5,
        num_heads=2,
        head_dim=3,
        value_head_dim=7,
        scale=0.75,
        num_positions=11,
        gate_with="own_keys",
        scale_positions=True,
    ),
    "values": Config(d_model=7, num_heads=2, head_dim=5, use_bias=False, num_positions=5, gate_with="values"),
}
