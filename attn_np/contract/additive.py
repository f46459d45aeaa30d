"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

from dataclasses import dataclass

from attn_np.contract import _attend, _base
from attn_np.contract._base import Arg, Param


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of additive attention. The values have any width; it comes with the call.

    Attributes:
        query_dim: width of the queries.
        key_dim: width of the keys; query_dim by default.
        hidden_dim: width of the hidden layer in which queries and keys meet.
        causal: query i sees the keys up to its own position, aligned at the last key.
        normalize_over: "keys": the weights of each query add up to 1; "queries": those of each key do.
    """

    class_name = "AdditiveAttention"
    family = "alignment"
    projects = {"w_q": False, "w_k": False}
    title = "Additive attention"
    idea = (
        "Queries and keys of different widths can't be multiplied, but both can be projected to a common "
        "hidden width and added. A tanh and one more weight vector turn each such sum into a score: a tiny "
        "network that learns what fits what."
    )
    formula = r"y_t = \sum_s \mathrm{softmax}_s\!\left(w_{score}^\top \tanh(w_q^\top q_t + w_k^\top k_s)\right) v_s"
    notation = {
        "s_{i-1} (decoder state)": "a query, index t",
        "h_j (annotation)": "a key and its value, index s",
        "W_a": "w_q transposed",
        "U_a": "w_k transposed",
        "v_a": "w_score",
        "e_ij, alpha_ij, c_i": "scores, probs, context",
        "n' (alignment width)": "E = hidden_dim, axis e",
    }
    cost = "time b t s (e + v) and the projections; memory b t s e on the textbook path"
    paper = (
        "Bahdanau, Cho, Bengio 2014, Neural Machine Translation by Jointly Learning to Align and Translate, "
        "arXiv:1409.0473, section 3.1 and appendix A.1.2; over the queries: Locatello et al. 2020, "
        "Object-Centric Learning with Slot Attention, arXiv:2006.15055, section 2.1"
    )
    traps = (
        "softmax over axis 1 of (b, t, s) is a softmax over the queries: with a single query, as in a "
        "decoder's step, every weight is 1 and w_q gets a gradient of exactly 0, so it never learns to "
        "attend",
        "queries and keys must each be broadcast along an axis of their own, (b, t, 1, e) + (b, 1, s, e); with as "
        "many queries as keys (b, t, e) + (b, s, e) raises no error and pairs query i with key i only",
        "passing the key width before the query width to the constructor, as some tutorials order them, swaps the two",
    )

    query_dim: int
    key_dim: int | None = None
    hidden_dim: int
    causal: bool = False
    dropout: float = 0.0
    normalize_over: str = "keys"

    def __post_init__(self) -> None:
        self.check_positive("query_dim", "key_dim", "hidden_dim")
        self.check_flag("causal")
        self.check_rate("dropout")
        self.check_one_of("normalize_over", tuple(_attend.SOFTMAX_AXIS))

    def sizes(self) -> dict[str, int]:
        return {"d": self.query_dim, "i": self.key_dim or self.query_dim, "e": self.hidden_dim}

    def own_params(self) -> dict[str, Param]:
        return {"w_q": Param("d e", "d"), "w_k": Param("i e", "i"), "w_score": Param("e", "e")}

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "key": Arg("b s i", falls_back_to="query"),
            "value": Arg("b s v", falls_back_to="key"),
            "mask": Arg("b t s", "mask", optional=True),
            "bias": Arg("b t s", "bias", optional=True),
            "keep": Arg("b t s", "keep", optional=True),
        }

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s e", "v": "b s v"} if self.causal and self.normalize_over == "keys" else {}


EXAMPLES = {
    "cross": Config(query_dim=7, key_dim=5, hidden_dim=11, dropout=0.25),
    "equal": Config(query_dim=5, hidden_dim=3),
    "causal": Config(query_dim=5, hidden_dim=7, causal=True),
    "queries": Config(query_dim=3, key_dim=13, hidden_dim=7, normalize_over="queries", dropout=0.5),
}
