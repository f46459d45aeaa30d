"""Attention with linear biases (ALiBi): a score falls with the distance between query and key."""

from dataclasses import dataclass

from attn_np.contract import _heads


@dataclass(frozen=True, kw_only=True)
class Config(_heads.MultiHeadSelfAttentionConfig):
    """Fields of attention with linear biases.

    Attributes:
        num_heads: how many heads attend, any number.
        scale: factor on the products of queries and keys; 1/sqrt(head_dim) by default.
        causal: a position sees itself and earlier ones. Without it distances count alike on both sides.
        window: (left, right), how many positions before and after its own a query sees; None is no limit.
        scale_slopes: the scale multiplies the biases as well, as in Falcon, which adds them before it scales.
    """

    class_name = "AlibiAttention"
    family = "positions"
    title = "Attention with linear biases (ALiBi)"
    idea = (
        "No positions are added to the embeddings. Instead every score is lowered in proportion to the distance "
        "between query and key, with a slope of its own for each head: some heads look near, some far. A model "
        "trained on short texts reads longer ones, because a larger distance only means more of the same."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{softmax}_s\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s} "
        r"- m_h\, |t - s|\right) v_h\, w_{o,h}, \qquad m_h = 2^{-8h/H},\; h = 1 \ldots H"
    )
    notation = {
        "m (slope of a head)": "slopes()[h]; H = num_heads a power of two gives 2^(-8 (h + 1) / H), h from 0",
        "-(i-1), ..., -2, -1, 0": "minus the distances of query t to the keys s; times the slopes: alibi, b h t s",
    }
    cost = "time b t t h (k + v); memory b h t t on the textbook path; no parameters of its own"
    paper = (
        "Press, Smith, Lewis 2022, Train Short, Test Long: Attention with Linear Biases Enables Input Length "
        "Extrapolation, arXiv:2108.12409, section 3; slopes for other numbers of heads as in the authors' code"
    )
    equals = ("mha with the biases -m_h |t - s| passed as bias=",)
    traps = (
        "slopes 2^(-8 (h + 1) / H) for a number of heads that is not a power of two: the authors take those of the "
        "next lower power and then every second one of twice that power, so checkpoints have other slopes, in this "
        "order",
        "a bias m_h s of the key's position alone, as some models have it, gives the same weights as long as every "
        "key precedes the query, but without causality it rewards later keys",
        "a bias that is added before the scores are scaled, as in Falcon: scale_slopes; elsewhere it is a mistake that "
        "makes slopes smaller by sqrt(K)",
        "positions counted from the padding on the left",
        "distances in 16 bits: beyond 256 bfloat16 cannot tell neighbours apart",
    )

    window: tuple[int | None, int | None] | None = None
    scale_slopes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_window("window")
        self.check_flag("scale_slopes")

    def broken_relations(self) -> dict[str, str]:
        order = "scores depend on the distance of queries and keys"
        added = "a part of the scores does not depend on the queries"
        reasons = {
            "keys_have_no_order": order,
            "twice_the_scores_square_the_weights": added,
            "indifferent_scores_share_evenly": added,
            "heads_stand_alone": "the slope of a head depends on how many there are",
        }
        if self.scale_slopes:
            reasons["the_scale_belongs_to_the_queries"] = "the scale multiplies the slopes as well"
        return reasons

    def slopes(self) -> tuple[float, ...]:
        """How much a score falls per position of distance, by head."""
        factor = 1.0
        if self.scale_slopes:
            factor = self.sizes()["k"] ** -0.5 if self.scale is None else self.scale
        return tuple(factor * slope for slope in slopes(self.num_heads))


def slopes(heads: int) -> tuple[float, ...]:
    """The slope of every head: for a power of two a geometric sequence down to 2^-8.

    For another number: the sequence of the next lower power, then every second slope of the sequence for twice that
    power, from its first.
    """
    power = 1 << (heads.bit_length() - 1)
    sequence = tuple(2.0 ** (-8 * (h + 1) / power) for h in range(power))
    return sequence if power == heads else sequence + slopes(2 * power)[::2][: heads - power]


EXAMPLES = {
    "causal": Config(d_model=7, num_heads=3, head_dim=5, value_head_dim=11, scale=0.5, causal=True, use_bias=False),
    "both": Config(d_model=6, num_heads=2, dropout=0.25, output_dim=5, scale_slopes=True),
    "ring": Config(d_model=5, num_heads=2, head_dim=3, causal=True, window=(2, None)),
}
