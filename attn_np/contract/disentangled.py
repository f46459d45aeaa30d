"""Disentangled attention (DeBERTa): contents look at contents, contents at positions, and positions at contents."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract import _heads
from attn_np.contract._base import Param, Preset

TERMS = ("c2p", "p2c")


@dataclass(frozen=True, kw_only=True)
class Config(_heads.RelativePositionConfig):
    """Fields of disentangled attention.

    Attributes:
        d_model: width of the queries and of the embeddings of relative positions.
        scale: factor on the scores, all terms; 1/sqrt(head_dim * (1 + len(score_terms))) by default.
        causal: query i sees the keys up to its own position, aligned at the last key. The paper's encoder is not
            causal.
        max_distance: k of the paper: relative positions from -k + 1 to k - 2 have a row each; smaller ones share the
            first, larger ones the last.
        score_terms: beside content to content: "c2p", "p2c" or both.
        buckets_per_side: embeddings of one side, twice as many in all; max_distance by default. With fewer,
            distances up to half of them have one each, and larger ones share them in buckets that grow with the
            distance.
        p2c_view: whose view of a relative position p2c looks up: "key" (the paper) or "query" (the models).
        share_projections: embeddings are projected by w_q and w_k with their biases, not by separate weights.
        rel_projection_bias: biases on the separate projections of embeddings.
        norm_rel: embeddings have a layer norm before they are projected.
        norm_eps: added under its root.
    """

    class_name = "DisentangledAttention"
    family = "positions"
    title = "Disentangled attention (DeBERTa)"
    idea = (
        "A word has two vectors, what it says and where it stands, and the two are never added. A score is the sum of "
        "three: how the contents fit, how the query's content fits the relative position of the key, and how the key's "
        "content fits that of the query. All heads and layers look relative positions up in one table."
    )
    formula = (
        r"e_{h,ts} = \tfrac{1}{\sqrt{3K}} \left(q_{h,t} \cdot k_{h,s} + q_{h,t} \cdot k^r_{h,\delta(t,s)} "
        r"+ k_{h,s} \cdot q^r_{h,\delta(s,t)}\right), \qquad \delta(t, s) = \mathrm{clip}(t - s + D, 0, 2D - 1), "
        r"\qquad y = b_o + \sum_h \mathrm{softmax}_s(e_h)\, v_h\, w_{o,h}"
    )
    notation = {
        "P": "w_rel, x d: a row for each relative position, 2 max_distance of them",
        "k (maximum relative distance)": "max_distance, D in the formula",
        "layer norm of P (norm_rel_ebd of the code)": "rel, x d, with norm_rel; w_rel_norm, b_rel",
        "Q^c, K^c, V^c": "q, k, v; W_q,c, W_k,c, W_v,c: w_q, w_k, w_v",
        "K^r = P W_k,r": "rel_k, x h k; W_k,r: w_rel_k, with b_rel_k",
        "Q^r = P W_q,r": "rel_q, x h k; W_q,r: w_rel_q, with b_rel_q",
        "max_relative_positions, position_buckets of the code": "max_distance, buckets_per_side",
        "share_att_key of the code": "share_projections",
        "A~ (terms a, b, c)": "content_scores, c2p_scores, p2c_scores; their sum, scaled: scores",
    }
    cost = "time b t s h (k + v) and b (t + s) x h k; memory b h (t s + (t + s) x) on the textbook path"
    paper = (
        "He, Liu, Gao, Chen 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, arXiv:2006.03654, "
        "section 3.1, equations 2 to 4"
    )
    equals = ("with all embeddings 0 and the scale of a head: mha",)
    traps = (
        "position to content picks by delta(s, t), the relative position as the key sees it; the authors' code, and "
        "with it every published model, picks by delta(t, s): p2c_view='query'",
        "delta is not the same on both sides: t - s of D and more shares row 2 D - 1, of -D and less row 0, "
        "so that -(D - 1) has row 1 and D - 1 the last",
        "the scale counts the terms: with one of them left out it is 1/sqrt(2 K)",
        "versions 2 and 3 project the table by the weights and biases of the contents, and count relative "
        "positions in buckets; version 1 has weights of their own, and for Q^r a bias: rel_projection_bias, whose "
        "part for K^r "
        "adds the same to all scores of a query",
        "a bucket's logarithm is rounded up here and down in T5",
        "published models of versions 2 and 3 norm the table of relative positions: norm_rel",
        "dropout on the table of relative positions belongs to the model around the layer",
    )

    max_distance: int = 512
    score_terms: tuple[str, ...] = ("c2p", "p2c")
    buckets_per_side: int | None = None
    p2c_view: str = "key"
    share_projections: bool = False
    rel_projection_bias: bool = False
    norm_rel: bool = False
    norm_eps: float = 0.0000001

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("max_distance", "buckets_per_side")
        self.check_one_of("p2c_view", ("key", "query"))
        self.check_flag("share_projections", "rel_projection_bias", "norm_rel")
        self.check_number("norm_eps", above=0.0)
        are_terms = isinstance(self.score_terms, tuple) and all(term in TERMS for term in self.score_terms)
        self.require(
            are_terms and 0 < len(set(self.score_terms)) == len(self.score_terms),
            "score_terms to be some of c2p, p2c, each once",
            repr(self.score_terms),
            "without any of them use mha",
        )
        apart = not (self.share_projections and self.rel_projection_bias)
        fix = "leave rel_projection_bias out: they are projected as contents are, with use_bias"
        self.require(
            apart,
            "separate projections of embeddings for rel_projection_bias=",
            "share_projections=True",
            fix,
        )
        key_dim = self.sizes()["i"]
        self.require(
            key_dim == self.d_model or not self.share_projections or "c2p" not in self.score_terms,
            f"key_dim={self.d_model}, as d_model, with share_projections and c2p",
            f"key_dim={key_dim}",
            "w_k projects embeddings of width d_model too: set share_projections=False",
        )
        self.require(
            self.buckets_per_side is None
            or (self.buckets_per_side % 2 == 0 and self.buckets_per_side < 2 * self.max_distance - 2),
            f"an even number of buckets below 2 max_distance - 2 = {2 * self.max_distance - 2}",
            self.buckets_per_side,
            "half of them hold one distance each, the others reach to max_distance",
        )

    def meaning(self) -> dict[str, Any]:
        idle = () if self.norm_rel else ("norm_eps",)
        idle += () if "p2c" in self.score_terms else ("p2c_view",)
        return {name: value for name, value in super().meaning().items() if name not in idle}

    def scale_or_default(self, width: int) -> float:
        return super().scale_or_default(width * (1 + len(self.score_terms)))

    def span(self) -> int:
        """How many embeddings one side has."""
        return self.buckets_per_side or self.max_distance

    def signed_buckets(self) -> tuple[int, ...]:
        """The bucket of every relative position from -max_distance to max_distance: negative for negative ones."""
        positive = buckets_by_distance(self.span(), self.max_distance)
        return (*(-x for x in positive[:0:-1]), *positive)

    def unshown_sizes(self) -> tuple[int, ...]:
        return (self.buckets_per_side or 0,)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"x": 2 * self.span()}

    def own_params(self) -> dict[str, Param]:
        more = {"w_rel": Param("x d", "d")}
        if self.norm_rel:
            more |= {"w_rel_norm": Param("d", "d", init=1.0), "b_rel": Param("d", "d")}
        if self.share_projections:
            return super().own_params() | more
        more |= {"w_rel_k": Param("d h k", "d")} if "c2p" in self.score_terms else {}
        more |= {"w_rel_q": Param("d h k", "d")} if "p2c" in self.score_terms else {}
        if self.rel_projection_bias:
            more |= {f"b_{name[2:]}": Param("h k", "d") for name in ("w_rel_k", "w_rel_q") if name in more}
        return super().own_params() | more

    def broken_relations(self) -> dict[str, str]:
        return super().broken_relations() | {
            "the_default_scale_is_that_of_the_head": "the scale counts the terms too",
        }


def buckets_by_distance(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The bucket of every distance from 0 to max_distance D.

    Up to m = num_buckets / 2 it is the distance d. Beyond, it is m + n for the least n with
    (d / m)^(m - 1) <= ((D - 1) / m)^n: the authors' formula, m + ceil((m - 1) log(d / m) / log((D - 1) / m)), without
    logarithms, in integers.
    """
    half, n = num_buckets // 2, 0
    bucket_of: list[int] = list(range(half + 1))
    for distance in range(half + 1, max_distance + 1):
        while distance ** (half - 1) * half**n > (max_distance - 1) ** n * half ** (half - 1):
            n += 1
        bucket_of.append(half + n)
    return tuple(bucket_of)


PRESETS = {
    "deberta_v3": Preset(
        title="DeBERTa's later versions",
        idea=(
            "Far distances share embeddings in buckets that grow with the distance, and embeddings are normed, then "
            "projected by the weights of the contents."
        ),
        paper="He, Gao, Chen 2021, DeBERTaV3, arXiv:2111.09543; buckets and weights as in the authors' code",
        fields={
            "max_distance": 512,
            "buckets_per_side": 256,
            "p2c_view": "query",
            "share_projections": True,
            "norm_rel": True,
        },
    ),
}

EXAMPLES = {
    "both": Config(
        d_model=6, num_heads=3, max_distance=3, dropout=0.25, share_projections=True, norm_rel=True, norm_eps=0.0625,
    ),
    "c2p": Config(
        d_model=5, num_heads=2, head_dim=7, value_head_dim=3, output_dim=11, max_distance=1, score_terms=("c2p",),
        rel_projection_bias=True, causal=True,
    ),
    "p2c": Config(
        d_model=6, num_heads=2, value_head_dim=5, scale=0.5, use_bias=False, max_distance=8, score_terms=("p2c",),
        buckets_per_side=6,
        p2c_view="query", rel_projection_bias=True,
    ),
    "cross": Config(
        d_model=5, num_heads=2, head_dim=3, value_head_dim=7, key_dim=13, value_dim=11, max_distance=3,
    ),
}  # fmt: skip
