"""Dot-product attention: a query takes the average of the values whose keys it resembles."""

from dataclasses import dataclass

from attn_np.contract import _attend
from attn_np.contract._base import Arg
from attn_np.contract._unlearned import Unlearned


@dataclass(frozen=True, kw_only=True)
class Config(Unlearned):
    """Fields of dot-product attention, which has nothing to learn; its widths come with the call.

    Attributes:
        window: (left, right), how many keys before and after its own position a query sees; None is no limit.
        normalize_over: "keys": the weights of each query add up to 1; "queries": those of each key do.
    """

    class_name = "DotProductAttention"
    family = "dense"
    title = "Dot-product attention"
    idea = (
        "A query is compared with every key by a dot product. A softmax turns the scores into weights, and the answer "
        "is the weighted average of the values: the keys that resemble the query most count most."
    )
    formula = (
        r"y_t = \sum_s p_{ts}\, v_s, \qquad "
        r"p_{ts} = \frac{\exp(q_t^\top k_s / \sqrt{K})}{\sum_{s'} \exp(q_t^\top k_{s'} / \sqrt{K})}"
    )
    notation = {
        "Q, K, V": "query, key, value",
        "d_k": "K, the width of queries and keys, axis k",
        "d_v": "V, the width of the values, axis v",
        "n queries, m key-value pairs": "T queries, axis t; S keys, axis s",
    }
    cost = "time b t s (k + v); memory b t s on the textbook path"
    paper = (
        "Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, section 3.2.1; over the queries: "
        "Locatello et al. 2020, Object-Centric Learning with Slot Attention, arXiv:2006.15055, section 2.1"
    )
    equals = ("every head of mha, and self_attention after its projections",)
    traps = (
        "softmax over axis 1 of (b, t, s) is a softmax over the queries: the weights of one query no longer "
        "add up to 1, and with a single query every weight is 1, so that the output is the plain sum of the "
        "values",
        "slot attention normalises over the queries on purpose, and then divides the weights of each query "
        "by their sum, which this layer leaves to its caller",
        "without the scale, scores grow with the width and the softmax saturates: its gradient vanishes",
        "a hidden score filled with -1e9 gives a row without allowed keys equal weights, and overflows in "
        "float16; one filled with -1e-25 hides nothing. Here hidden keys are selected away and such a row "
        "gives 0",
        "a mask of the wrong polarity raises no error: True = may attend here",
    )

    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    normalize_over: str = "keys"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("softcap", above=0.0)
        self.check_window("window")
        self.check_rate("dropout")
        self.check_one_of("normalize_over", tuple(_attend.SOFTMAX_AXIS))

    def arguments(self) -> dict[str, Arg]:
        added = {"bias": Arg("b t s", "bias", optional=True), "keep": Arg("b t s", "keep", optional=True)}
        return super().arguments() | added

    def cache_axes(self) -> dict[str, str]:
        return super().cache_axes() if self.normalize_over == "keys" else {}


EXAMPLES = {
    "scaled": Config(dropout=0.25),
    "unscaled": Config(scale=1.0, causal=True),
    "queries": Config(normalize_over="queries", window=(2, 1)),
    "capped": Config(scale=0.375, window=(3, None), softcap=1.5, normalize_over="queries", dropout=0.5),
}
