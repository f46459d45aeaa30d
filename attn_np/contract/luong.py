"""Luong attention: a query is compared with all keys, or few, by a dot product, a matrix or a small network."""

from dataclasses import dataclass

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of Luong's attention, global and local. The values have any width; it comes with the call.

    Attributes:
        query_dim: width of the queries.
        key_dim: width of the keys; query_dim by default, and nothing else for the score "dot".
        hidden_dim: width of the hidden layer of the score "concat", query_dim by default; no other score has one.
        score: "dot": query times key; "general": a matrix in between; "concat": a hidden layer over both.
        causal: query i sees the keys up to its own position, aligned at the last key.
        local: None: every key is seen; "m": query t sees a window around key t; "p": around a center that it predicts.
        half_window: how many keys to each side of the center a query sees; 10 in the paper.
        position_dim: width of the hidden layer that predicts centers, query_dim by default; for local="p" only.
    """

    class_name = "LuongAttention"
    family = "alignment"
    projects = {"w": False, "w_q": False, "w_k": False, "w_position": False}
    title = "Luong attention"
    idea = (
        "How well a query fits a key can be measured in three ways: by their dot product, which has nothing to learn; "
        "by a dot product through a matrix, which learns what to compare and lets the widths differ; by a small "
        "network that reads both. The scores are used as they are, unscaled. And a query need not look at all keys: "
        "the words to translate next are near one place of the source, at the query's own position or where a small "
        "network expects them."
    )
    formula = (
        r"y_t = \sum_s \mathrm{softmax}_s(e_{ts})\, v_s, \qquad e_{ts} = q_t^\top k_s \ \ (\mathrm{dot}), \qquad "
        r"e_{ts} = q_t^\top w\, k_s \ \ (\mathrm{general}), \qquad "
        r"e_{ts} = w_{score}^\top \tanh(w_q^\top q_t + w_k^\top k_s) \ \ (\mathrm{concat}); \qquad "
        r"\mathrm{local}: \ |s - p_t| \leq D, \quad p_t = t \ \ (\mathrm{m}), \quad "
        r"p_t = S\, \sigma(w_{center}^\top \tanh(w_{position}^\top q_t)), \ "
        r"\mathrm{softmax}_s(e_{ts})\, e^{-2 (s - p_t)^2 / D^2} \ \ (\mathrm{p})"
    )
    notation = {
        "h_t (target hidden state)": "a query, index t",
        "h_s with a bar (source hidden states)": "the keys, which are also the values, index s",
        "W_a of general": "w",
        "W_a of concat": "w_q on top of w_k, transposed",
        "v_a": "w_score",
        "score, a_t, c_t": "scores, probs, context",
        "align(h_t, h_s) of local-p": "align, the softmax inside of the window",
        "D, sigma": "half_window, half_window / 2",
        "p_t, S": "center, length: how many keys the query may see",
        "W_p, v_p": "w_position transposed, w_center",
        "s - p_t, exp(-(s - p_t)^2 / (2 sigma^2))": "offset, gaussian",
    }
    cost = (
        "dot: time b t s (d + v); general: and b t d i; concat: time b t s (e + v); memory b t s, for concat b t s e, "
        "on the textbook path; "
        "local: as much here, 2 half_window + 1 instead of s if the rest is skipped"
    )
    paper = (
        "Luong, Pham, Manning 2015, Effective Approaches to Attention-based Neural Machine Translation, "
        "arXiv:1508.04025, section 3.1; local in section 3.2, equations 9 and 10; what follows the context there, "
        "tanh(W_c [c_t; h_t]), is left to the caller"
    )
    equals = (
        "the score dot: dot_product with scale=1.0",
        "the score general with the identity for w: the score dot",
        "the score concat: additive with the same weights",
        "local='m' with a half_window as long as the longer sequence: all keys are seen",
    )
    traps = (
        "the paper's scores are unscaled: with wide states those of dot and general grow and the softmax saturates",
        "w and its transpose, or the two halves of a joint matrix over [q; k] exchanged, have the same shapes where "
        "queries are as wide as keys, and raise no error",
        "the query is the decoder's state of this step, h_t; additive attention in its first paper uses the state "
        "before it",
        "the weights of local='p' are multiplied by the Gaussian after the softmax: they add up to less than 1, and a "
        "second normalisation is another function",
        "sigma is half_window / 2: at the window's edge a weight still has e^-2 of its value",
        "S is the length of the sentence, not of the padded array: it and the keys' positions are counted over the "
        "visible keys, from 1",
        "queries are counted from the first, as keys are: with local='m' queries passed one by one are each at "
        "position 1; a causal query is at the last key that it sees",
    )

    query_dim: int
    key_dim: int | None = None
    hidden_dim: int | None = None
    score: str = "general"
    causal: bool = False
    local: str | None = None
    half_window: int | None = None
    position_dim: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.check_positive("query_dim", "key_dim", "hidden_dim", "half_window", "position_dim")
        self.check_one_of("score", ("dot", "general", "concat"))
        self.check_flag("causal")
        self.check_rate("dropout")
        self.require(
            self.score != "dot" or self.key_dim in (None, self.query_dim),
            "key_dim equal to query_dim for score='dot'",
            f"key_dim={self.key_dim}, query_dim={self.query_dim}",
            "leave key_dim out or set score='general'",
        )
        self.require(
            self.score == "concat" or self.hidden_dim is None,
            "hidden_dim for score='concat' only",
            f"hidden_dim={self.hidden_dim}, score={self.score!r}",
            "leave hidden_dim out",
        )
        self.check_one_of("local", (None, "m", "p"))
        self.require(
            (self.local is None) == (self.half_window is None),
            "half_window for local='m' and local='p', and for them only",
            f"half_window={self.half_window}, local={self.local!r}",
            "give both or none of them",
        )
        self.require(
            self.local == "p" or self.position_dim is None,
            "position_dim for local='p' only",
            f"position_dim={self.position_dim}, local={self.local!r}",
            "leave position_dim out",
        )

    def sizes(self) -> dict[str, int]:
        sizes = {"d": self.query_dim, "i": self.key_dim or self.query_dim}
        sizes |= {"e": self.hidden_dim or self.query_dim} if self.score == "concat" else {}
        return sizes | {"m": self.position_dim or self.query_dim} if self.local == "p" else sizes

    def own_params(self) -> dict[str, Param]:
        params = {
            "dot": {},
            "general": {"w": Param("d i", "d")},
            "concat": {"w_q": Param("d e", "d"), "w_k": Param("i e", "i"), "w_score": Param("e", "e")},
        }[self.score]
        return params | {"w_position": Param("d m", "d"), "w_center": Param("m", "m")} if self.local == "p" else params

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
        keys = "b s e" if self.score == "concat" else "b s i"
        return {"k": keys, "v": "b s v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        if self.local is None:
            return {}
        order, why = "the mask depends on positions", "keys outside the window are hidden too"
        reasons = {
            "keys_have_no_order": order,
            "every_key_twice_changes_nothing": order,
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
            "outputs_stay_among_the_values": "the weights of a query may add up to less than 1, to 0 too",
        }
        if self.local == "p":
            return reasons | {"twice_the_scores_square_the_weights": "weights fall with the distance after the softmax"}
        first = "queries are counted from the first"
        counted = {"queries_have_no_order": first, "the_last_queries_stand_alone": first}
        return reasons if self.causal else reasons | counted


EXAMPLES = {
    "general": Config(query_dim=7, key_dim=5, dropout=0.25),
    "dot": Config(query_dim=5, score="dot", local="m", half_window=2),
    "concat": Config(query_dim=3, key_dim=13, hidden_dim=11, score="concat", dropout=0.5),
    "predicted": Config(query_dim=5, key_dim=3, local="p", half_window=3, position_dim=7),
    "causal": Config(query_dim=5, hidden_dim=7, score="concat", causal=True, local="m", half_window=2),
}
