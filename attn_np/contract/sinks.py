"""Attention sinks: one more score in the softmax, without key and value, so that a head need not look at anything."""

from dataclasses import dataclass

from attn_np.contract._base import Param, Preset
from attn_np.contract._heads import CrossAttentionConfig


@dataclass(frozen=True, kw_only=True)
class Config(CrossAttentionConfig):
    """Fields of multi-head attention with sinks.

    Attributes:
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled. The sink's score is not scaled.
        window: (left, right), how many keys before and after its own position a query sees; None is no limit. The sink
            is always visible.
        softcap: scores become softcap * tanh(scores / softcap); the sink's score is not capped.
        sink: "learned": each head learns a score of its own; "zero": the score 0, softmax off by one.
    """

    class_name = "SinkAttention"
    family = "scores"
    title = "Attention sinks"
    idea = (
        "Softmax makes every head hand out a whole 1, even when no key fits. Trained models then pile weight on the "
        "first token, whose value they learn to ignore. A sink gives them a place for it: one more score in the "
        "softmax, without a key and without a value. The weights of the keys then add up to less than 1, and a head "
        "that finds nothing says nothing."
    )
    formula = r"y = b_o + \sum_h \left(\frac{e^{e_{ts}}}{e^{z_h} + \sum_{u} e^{e_{tu}}}\right) v_h\, w_{o,h}"
    notation = {
        "S (learned sinks of gpt-oss), z_h in the formula": "sinks, one number for each head h",
        "e_{ts}": "scores, after softcap and bias",
        "SoftMax_1, (exp x_i) / (1 + sum exp x_j)": 'sink="zero": exp(0) = 1',
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path"
    paper = (
        "OpenAI 2025, gpt-oss-120b and gpt-oss-20b Model Card, arXiv:2508.10925 (a learned number "
        "in each head's denominator); Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, "
        "arXiv:2309.17453, section 3.3 (SoftMax off by one is a key and a value of zeros); Miller 2023, Attention Is "
        "Off By One"
    )
    equals = (
        'sink="zero" without biases: mha with one more key of zeros that every query sees',
        "a sink of -inf: mha",
    )
    traps = (
        "the sink is a score, not a weight: it is not scaled, not capped, not masked, and the bias does not reach it",
        "the largest score that is subtracted before exp has to be the largest of keys and sink together: with that of "
        "the keys alone a sink far above them overflows",
        "1 added to the sum after the largest score was subtracted is not off by one: it must be exp(-largest)",
        "the weights of a row no longer add up to 1: code that divides by their sum undoes the sink",
    )

    sink: str = "learned"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_of("sink", ("learned", "zero"))

    def own_params(self) -> dict[str, Param]:
        return super().own_params() | ({"sinks": Param("h", "k")} if self.sink == "learned" else {})

    def broken_relations(self) -> dict[str, str]:
        shared = "the sink takes a share of every row"
        return {
            "weights_add_up_to_one": shared,
            "a_constant_on_all_scores_changes_nothing": "the sink's score stays where it is",
            "every_key_twice_changes_nothing": "the sink is there once",
            "twice_the_scores_square_the_weights": "the sink's score stays where it is",
            "indifferent_scores_share_evenly": shared,
        }


EXAMPLES = {
    "learned": Config(d_model=5, num_heads=3, head_dim=7, causal=True, window=(2, None), scale=0.375, use_bias=False),
    "zero": Config(
        d_model=7, num_heads=2, head_dim=3, value_head_dim=11, key_dim=13, value_dim=5, softcap=1.5, dropout=0.25,
        sink="zero", output_dim=17,
    ),
}  # fmt: skip

PRESETS = {
    "off_by_one": Preset(
        title="Softmax off by one",
        idea="A sink whose score is 0 (a zero sink): 1 is added to the sum of the exponentials, nothing is learned.",
        paper="Miller 2023, Attention Is Off By One; Xiao et al. 2023, arXiv:2309.17453, section 3.3",
        fields={"sink": "zero"},
    ),
}
