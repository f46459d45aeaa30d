"""Disentangled attention (DeBERTa): contents look at contents, contents at positions, and positions at contents."""

from dataclasses import dataclass

from attn_np.contract import _base, _heads
from attn_np.contract._base import Param

TERMS = ("c2p", "p2c")


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Config):
    """Fields of disentangled attention.

    Attributes:
        d_model: width of the input, of the output and of the embeddings of distances.
        num_heads: how many heads attend.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        scale: factor on the scores, all terms; 1/sqrt(head_dim * number of terms) by default.
        causal: a position sees itself and what stands before it. The paper's encoder has none.
        dropout: share of the weights set to 0 in training.
        use_bias: biases on the four projections.
        max_distance: k of the paper: distances from -k + 1 to k - 1 are told apart; 2 k embeddings.
        terms: beside content to content: "c2p", "p2c" or both.
    """

    layer = "DisentangledAttention"
    family = "positions"
    title = "Disentangled attention (DeBERTa)"
    idea = (
        "A word has two vectors, what it says and where it stands, and the two are never added. A score is the sum of "
        "three: how the contents fit, how the query's content fits the distance to the key, and how the key's content "
        "fits the distance to the query. All heads and layers look distances up in one table."
    )
    formula = (
        r"e_{h,ts} = \tfrac{1}{\sqrt{3K}} \left(q_{h,t} \cdot k_{h,s} + q_{h,t} \cdot k^r_{h,\delta(t,s)} "
        r"+ k_{h,s} \cdot q^r_{h,\delta(s,t)}\right), \qquad \delta(t, s) = \mathrm{clip}(t - s + D, 0, 2D - 1), "
        r"\qquad y = b_o + \sum_h \mathrm{softmax}_s(e_h)\, v_h\, w_{o,h}"
    )
    notation = {
        "P": "w_rel, x d: a row for each distance, 2 max_distance of them",
        "k (maximum relative distance)": "max_distance, D in the formula",
        "Q^c, K^c, V^c": "q, k, v; W_q,c, W_k,c, W_v,c: w_q, w_k, w_v",
        "K^r = P W_k,r": "rel_k, x h k; W_k,r: w_rel_k",
        "Q^r = P W_q,r": "rel_q, x h k; W_q,r: w_rel_q",
        "A~ (terms a, b, c)": "content_scores, c2p_scores, p2c_scores; their sum, scaled: scores",
    }
    cost = "time b t t h (k + v) and 2 b t x h k; memory b h t (t + x) on the textbook path"
    paper = (
        "He, Liu, Gao, Chen 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, arXiv:2006.03654, "
        "section 3.1, equations 2 to 4"
    )
    equals = ("with all embeddings 0 and the scale of a head: mha",)
    traps = (
        "position to content picks by delta(s, t), the distance as the key sees it, not by delta(t, s)",
        "delta is not the same on both sides: distance D and beyond share row 2 D - 1, distance -D and beyond row 0, "
        "so that -(D - 1) has row 1 and D - 1 the last",
        "the scale counts the terms: with one of them left out it is 1/sqrt(2 K)",
        "the table of distances is projected for each layer, by weights of its own or, in later versions, by those of "
        "the contents: share_att_key",
        "dropout and a layer norm on the table of distances belong to the model around the layer",
    )

    max_distance: int = 256
    terms: tuple[str, ...] = ("c2p", "p2c")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("max_distance")
        known = isinstance(self.terms, tuple) and all(term in TERMS for term in self.terms)
        _base.require(
            known and 0 < len(set(self.terms)) == len(self.terms),
            self.variant,
            "terms to be some of c2p, p2c, each once",
            repr(self.terms),
            "without any of them use mha",
        )

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"x": 2 * self.max_distance}

    def own_params(self) -> dict[str, Param]:
        more = {"w_rel": Param("x d", "d")}
        more |= {"w_rel_k": Param("d h k", "d")} if "c2p" in self.terms else {}
        more |= {"w_rel_q": Param("d h k", "d")} if "p2c" in self.terms else {}
        return super().own_params() | more

    def exempt(self) -> dict[str, str]:
        return {
            "keys_have_no_order": "scores depend on the distance of queries and keys",
            "the_default_scale_is_that_of_the_head": "the scale counts the terms too",
        }


EXAMPLES = {
    "both": Config(d_model=6, num_heads=3, max_distance=3, dropout=0.25),
    "c2p": Config(d_model=5, num_heads=2, head_dim=7, value_head_dim=3, max_distance=1, terms=("c2p",), causal=True),
    "p2c": Config(d_model=7, num_heads=2, head_dim=5, scale=0.5, use_bias=False, max_distance=5, terms=("p2c",)),
}
