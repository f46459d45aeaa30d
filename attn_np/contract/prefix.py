"""Prefix attention: all positions see the prefix, and the rest is causal."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg


@dataclass(frozen=True, kw_only=True)
class Config(_heads.BidirectionalConfig):
    """Fields of prefix attention."""

    class_name = "PrefixAttention"
    family = "sparse"
    title = "Prefix attention"
    idea = (
        "The input of a task precedes its output in one sequence. The input is known from the start, so every "
        "position may look at the whole of it, in both directions; the output is written word by word and looks back "
        "only. One mask makes an encoder and a decoder of the same layer."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where} \quad s < n \ \mathrm{or} \ s \leq t, "
        r"\qquad y_t = b_o + \sum_h \sum_s p_{hts}\, v_{hs}\, w_{o,h}"
    )
    notation = {"prefix length, n": "prefix, one number for each sequence"}
    cost = "time b t t h (k + v); memory b t h (k + v), and b h t t where weights are returned"
    paper = (
        "Raffel et al. 2020, T5, arXiv:1910.10683, section 3.2.1, figures 3 and 4 (causal with prefix); Dong et al. "
        "2019, UniLM, arXiv:1905.03197, section 2 (sequence-to-sequence)"
    )
    equals = (
        "prefix=0 or 1: mha with causal=True",
        "a prefix as long as the sequence: mha",
    )
    traps = (
        "the prefix sees itself in both directions: a mask that only shows the prefix to later positions leaves the "
        "prefix causal",
        "later positions are hidden from the prefix: otherwise the answer leaks through the states of the prefix",
        "prefixes of a batch differ in length: one number for all is wrong for the other rows",
        "the prefix is counted from position 0 of the array: with padding on the left it ends too early, so add the "
        "length of the padding to the number",
    )

    def arguments(self) -> dict[str, Arg]:
        arguments = super().arguments()
        return {"query": arguments.pop("query"), "prefix": Arg("b", "integers", judge_below=5), **arguments}

    def why_no_cache(self) -> str:
        return "a prefix whose positions see ahead: its keys and values change with every new one"

    def broken_relations(self) -> dict[str, str]:
        why = "later keys beyond the prefix are hidden too"
        return {
            "keys_have_no_order": "the mask depends on positions",
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
            "hidden_keys_may_as_well_not_be_there": "without some keys, others move into the prefix",
        }


EXAMPLES = {
    "split": Config(d_model=6, num_heads=2, output_dim=5, dropout=0.25),
    "wide": Config(d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, use_bias=False),
}
