"""Luong attention: a query meets every key in a dot product, through a matrix, or in a small network."""

from dataclasses import dataclass

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of Luong's global attention. The values have any width; it comes with the call.

    Attributes:
        query_dim: width of the queries.
        key_dim: width of the keys; query_dim by default, and nothing else for the score "dot".
        hidden_dim: width of the hidden layer of the score "concat", query_dim by default; no other score has one.
        score: "dot": query times key; "general": a matrix in between; "concat": a hidden layer over both.
        dropout: share of the weights set to 0 in training.
    """

    layer = "LuongAttention"
    family = "dense"
    title = "Luong attention"
    idea = (
        "How well a query fits a key can be measured in three ways: by their dot product, which has nothing to learn; "
        "by a dot product through a matrix, which learns what to compare and lets the widths differ; by a small "
        "network that reads both. The scores are used as they are, unscaled."
    )
    formula = (
        r"y_t = \sum_s \mathrm{softmax}_s(e_{ts})\, v_s, \qquad e_{ts} = q_t^\top k_s \ \ (\mathrm{dot}), \qquad "
        r"e_{ts} = q_t^\top w\, k_s \ \ (\mathrm{general}), \qquad "
        r"e_{ts} = w_{score}^\top \tanh(w_q^\top q_t + w_k^\top k_s) \ \ (\mathrm{concat})"
    )
    notation = {
        "h_t (target hidden state)": "a query, index t",
        "h_s with a bar (source hidden states)": "the keys, which are the values too, index s",
        "W_a of general": "w",
        "W_a of concat": "w_q on top of w_k, transposed",
        "v_a": "w_score",
        "score, a_t, c_t": "scores, probs, context",
    }
    cost = "dot: time b t s (d + v), memory b t s; general: and b t d i; concat: time b t s (e + v), memory b t s e"
    paper = (
        "Luong, Pham, Manning 2015, Effective Approaches to Attention-based Neural Machine Translation, "
        "arXiv:1508.04025, section 3.1; what follows the context there, tanh(W_c [c_t; h_t]), is left to the caller"
    )
    equals = (
        "the score dot: dot_product with scale=1.0",
        "the score general with the identity for w: the score dot",
        "the score concat: additive with the same weights",
    )
    traps = (
        "the paper's scores are unscaled: with wide states those of dot and general grow and the softmax saturates",
        "w and its transpose, or the two halves of a joint matrix over [q; k] exchanged, have the same shapes where "
        "queries are as wide as keys, and raise no error",
        "the query is the decoder's state of this step, h_t; additive attention in its first paper asks with the "
        "state before it",
    )

    query_dim: int
    key_dim: int | None = None
    hidden_dim: int | None = None
    score: str = "general"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.positive("query_dim", "key_dim", "hidden_dim")
        self.one_of("score", ("dot", "general", "concat"))
        self.rate("dropout")
        _base.require(
            self.score != "dot" or self.key_dim in (None, self.query_dim),
            self.variant,
            "key_dim equal to query_dim for score='dot'",
            f"key_dim={self.key_dim}, query_dim={self.query_dim}",
            "leave key_dim out or set score='general'",
        )
        _base.require(
            self.score == "concat" or self.hidden_dim is None,
            self.variant,
            "hidden_dim for score='concat' only",
            f"hidden_dim={self.hidden_dim}, score={self.score!r}",
            "leave hidden_dim out",
        )

    def sizes(self) -> dict[str, int]:
        sizes = {"d": self.query_dim, "i": self.key_dim or self.query_dim}
        return sizes | {"e": self.hidden_dim or self.query_dim} if self.score == "concat" else sizes

    def own_params(self) -> dict[str, Param]:
        return {
            "dot": {},
            "general": {"w": Param("d i", "d")},
            "concat": {"w_q": Param("d e", "d"), "w_k": Param("i e", "i"), "w_score": Param("e", "e")},
        }[self.score]

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "key": Arg("b s i", default="query"),
            "value": Arg("b s v", default="key"),
            "mask": Arg("b t s", "mask", optional=True),
            "bias": Arg("b t s", "bias", optional=True),
            "keep": Arg("b t s", "keep", optional=True),
        }


EXAMPLES = {
    "general": Config(query_dim=7, key_dim=5, dropout=0.25),
    "dot": Config(query_dim=5, score="dot"),
    "concat": Config(query_dim=3, key_dim=13, hidden_dim=11, score="concat", dropout=0.5),
}
