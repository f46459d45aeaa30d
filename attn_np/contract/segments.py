"""Segmented attention: several documents packed into one sequence, none of which sees another."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg


@dataclass(frozen=True, kw_only=True)
class Config(_heads.MultiHeadSelfAttentionConfig):
    """Fields of segmented attention.

    Attributes:
        causal: query i sees the keys up to its own position.
    """

    class_name = "SegmentedAttention"
    family = "sparse"
    title = "Segmented attention"
    idea = (
        "Little is wasted when several documents of different lengths are packed into one sequence. Each position "
        "carries the number of its document and sees the keys with the same number only, so every document gets the "
        "result that it would get by itself."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where} \quad g_t = g_s, "
        r"\qquad y_t = b_o + \sum_h \sum_s p_{hts}\, v_{hs}\, w_{o,h}"
    )
    notation = {"g_t (number of the document)": "segments", "sequence packing, example packing": "several documents"}
    cost = (
        "time b t n h (k + v) for documents of n positions, each in one stretch; b t t h (k + v) in any order;"
        " memory b t h (k + v), and b h t t where weights are returned"
    )
    paper = (
        "Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027: the mask of a "
        "pack is block-diagonal"
    )
    equals = (
        "mha with a block-diagonal mask",
        "one document: mha",
        "documents of one length in turn: chunked",
    )
    traps = (
        "with causality alone a document still sees those packed before it",
        "positions run on through the pack: position encodings must restart with each document",
        "padding needs a number of its own: with a document's number it is seen as part of that document",
        "numbers of documents stored in 16 bits run together: beyond 256 bfloat16 cannot tell neighbours apart",
        "losses at the last position of a document would predict the first word of the next",
    )

    def arguments(self) -> dict[str, Arg]:
        arguments = super().arguments()
        return {"query": arguments.pop("query"), "segments": Arg("b t", "integers", judge_below=3), **arguments}

    def cache_axes(self) -> dict[str, str]:
        return {"segments": "b s", **super().cache_axes()} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        why = "keys of other documents are hidden too"
        return {
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
        }


EXAMPLES = {
    "both": Config(d_model=6, num_heads=2, output_dim=5, dropout=0.25),
    "causal": Config(d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, causal=True, use_bias=False),
}
