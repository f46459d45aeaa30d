"""Longformer attention: a window of neighbours, and a few positions that see all and are seen by all."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg, Param

PROJECTED = ("q", "k", "v")


@dataclass(frozen=True, kw_only=True)
class Config(_heads.BidirectionalConfig):
    """Fields of Longformer attention.

    Attributes:
        use_bias: biases on all projections.
        half_window: how many keys on each side of its own position a query sees.
    """

    class_name = "LongformerAttention"
    family = "sparse"
    title = "Longformer attention"
    idea = (
        "Most of what a word needs is near it, so every position sees a window of neighbours. A few positions, such "
        "as the one that a class is read from or the words of a question, are global: they see everything and "
        "everything sees them, so that any two positions are two steps apart. They attend with projections of their "
        "own."
    )
    formula = (
        r"t \ \mathrm{global}: \ q^g_t\ \mathrm{on\ all}\ k^g_s, v^g_s; \qquad \mathrm{else}: \ "
        r"q_t\ \mathrm{on}\ k_s, v_s \ \mathrm{where}\ |t - s| \leq w / 2\ \mathrm{or}\ s\ \mathrm{global}"
    )
    notation = {
        "w (window size)": "2 half_window, without the query's own position",
        "Q_s, K_s, V_s": "w_q, w_k, w_v: sliding window",
        "Q_g, K_g, V_g": "w_q_global, w_k_global, w_v_global",
    }
    cost = (
        "time b t (w + m) h (k + v) for m global positions, in blocks of 64 queries (512 in PyTorch on a GPU); keys are"
        " skipped 64 at a time; memory b t h (k + v), and b h t t where weights are returned"
    )
    paper = "Beltagy et al. 2020, Longformer, arXiv:2004.05150, section 3.1, Global Attention and Linear Projections"
    equals = (
        "without global positions: mha with a window",
        "with global positions alone: mha with the global projections",
    )
    traps = (
        "a local position sees a global one by the projections of the window, for queries, keys and values: the "
        "global projections serve the queries of global positions only",
        "global attention goes both ways: a global position that is not seen by the others passes nothing on",
        "a window of w is w / 2 to each side in the paper and w keys to one side elsewhere",
        "global projections begin as copies of the others; separate random ones spoil a pretrained model",
    )

    half_window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("half_window")

    def own_params(self) -> dict[str, Param]:
        params = super().own_params()
        more = {
            f"{kind}_{name}_global": params[f"{kind}_{name}"]
            for kind in ("w", "b")
            for name in PROJECTED
            if f"{kind}_{name}" in params
        }
        return params | more

    def arguments(self) -> dict[str, Arg]:
        arguments = super().arguments()
        return {"query": arguments.pop("query"), "global_mask": Arg("b t", "marks", optional=True), **arguments}

    def why_no_cache(self) -> str:
        return "a window to both sides"

    def broken_relations(self) -> dict[str, str]:
        why = "keys outside the window are hidden too"
        return {
            "keys_have_no_order": "the mask depends on positions",
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
            "the_output_is_the_weights_times_the_values": "queries of global positions average other values",
        }


EXAMPLES = {
    "split": Config(d_model=6, num_heads=2, output_dim=5, dropout=0.25, half_window=1),
    "wide": Config(d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, use_bias=False, half_window=2),
}
