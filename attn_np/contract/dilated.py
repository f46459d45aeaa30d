"""Dilated attention: a window that skips positions, so that as many keys reach further back."""

from dataclasses import dataclass

from attn_np.contract import _heads


@dataclass(frozen=True, kw_only=True)
class Config(_heads.MultiHeadSelfAttentionConfig):
    """Fields of dilated attention.

    Attributes:
        causal: query i sees the keys up to its own position.
        dilation: the distance between neighbouring keys that a query sees.
        steps: the window counted in multiples of the dilation: (left, right), how many such keys before and after
            its own position a query sees; None is no limit.
    """

    class_name = "DilatedAttention"
    family = "sparse"
    title = "Dilated attention"
    idea = (
        "A window of neighbours with gaps between them: a query looks at its own position and at those whole multiples "
        "of the dilation away. With as many keys as a plain window it reaches as many times further, and layers or "
        "heads of different dilations together see everything."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where} \quad s - t = n\, d, \ -w_l \leq n \leq w_r, "
        r"\qquad y_t = b_o + \sum_h \sum_s p_{hts}\, v_{hs}\, w_{o,h}"
    )
    notation = {
        "d (dilation), l (stride)": "dilation",
        "w (window), w_l, w_r": "steps: w / 2 on each side, or (w - 1, 0) for causal",
    }
    cost = (
        "time b t w dilation h (k + v) for w keys of a window: what lies between them is computed and hidden;"
        " memory b t h (k + v), and b h t t where weights are returned"
    )
    paper = (
        "Beltagy et al. 2020, Longformer, arXiv:2004.05150, section 3.1 and figure 2c; without a limit it is the "
        "strided part of Child et al. 2019, Sparse Transformers, arXiv:1904.10509, section 4.3"
    )
    equals = (
        "dilation=1: mha with window=steps",
        "steps=None: a mask of every dilation-th position; segments numbered by position modulo dilation",
    )
    traps = (
        "steps count keys, not positions: the reach to the left is steps * dilation positions",
        "multiples are counted from the query's own position: counted from the first key, as in a strided pattern "
        "with summary positions, a query would see keys of another residue",
        "in some languages the remainder of a negative distance is negative: compare it with 0 only",
        "if every layer has the same dilation, positions of different residues never meet",
    )

    dilation: int
    steps: tuple[int | None, int | None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("dilation")
        self.check_window("steps")

    def cache_slots(self) -> int | None:
        left = None if self.steps is None else self.steps[0]
        return None if left is None else left * self.dilation + 1

    def broken_relations(self) -> dict[str, str]:
        why = "keys between the steps are hidden too"
        return {
            "keys_have_no_order": "the mask depends on positions",
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
        }


EXAMPLES = {
    "both": Config(d_model=6, num_heads=2, output_dim=5, dropout=0.25, dilation=2, steps=(0, 1)),
    "strided": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, causal=True, use_bias=False, dilation=3
    ),
    "causal": Config(d_model=5, num_heads=2, head_dim=3, causal=True, dilation=2, steps=(1, None)),
}
