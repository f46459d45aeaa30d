"""Differential attention: the difference of two softmax maps, in which their common noise cancels."""

from dataclasses import dataclass
from math import exp
from typing import Any

from attn_np.contract._base import Arg, Param, Spec, rounded
from attn_np.contract._heads import CrossAttentionConfig
from attn_np.contract._norms import relations_broken_by_context_norm
from attn_np.contract._rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class Config(Rotary, CrossAttentionConfig):
    """Fields of differential attention: those of multi-head attention, and the factor of the second map.

    Attributes:
        num_heads: how many heads attend, each with two maps.
        head_dim: width of one map's queries and keys; d_model / num_heads / 2 by default, which must then divide.
        value_head_dim: width of a head's values; 2 head_dim by default.
        dropout: share of the weights set to 0 in training, after the maps are subtracted.
        lambda_init: the constant part of the second map's factor, in [0, 1); from the depth by default.
        lambda_form: "vectors": the second map's factor is exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) +
            lambda_init; "layer": it is one learned number, lambda_init at the start; "head": one for each head.
        depth: number of the layer in its model, from 1; lambda_init is 0.8 - 0.6 exp(-0.3 (depth - 1)) by default.
        num_kv_heads: how many heads of keys and values there are; num_heads by default, which it must divide.
        use_norm: each head's output is normalised and multiplied by 1 - lambda_init.
        norm_weight: that norm has a weight.
        norm_eps: added under the root of that norm.
        rope_base: pair i of a map's queries and keys rotates by rope_base^(-2i / head_dim) per position, in
            self-attention; None: no rotation.
        rope_layout: "half", a pair is one dimension of each half, or "interleaved", two neighbours.
        max_positions: exclusive limit of the positions that a call may pass; without it a call passes none.
    """

    class_name = "DifferentialAttention"
    family = "heads"
    title = "Differential attention"
    idea = (
        "A softmax gives a little weight to every key, and over a long text the little adds up to noise. Two maps have "
        "much of that noise in common: one minus the other leaves what only the first one sees."
    )
    formula = (
        r"y = b_o + \sum_h (1 - \lambda_{init})\, \mathrm{RMSNorm}\!\left(\left(a_{h,1} - \lambda\, a_{h,2}\right) "
        r"v_h\right) w_{o,h}, \quad a_{h,r} = \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,r} k_{h,r}^\top\right)"
    )
    notation = {
        "d (half of a head)": "K = head_dim, axis k; values have V = value_head_dim, axis v, which is 2 K",
        "Q_1, Q_2; K_1, K_2": "q[:, :, :, r], k[:, :, :, r] for r = 0, 1",
        "lambda_q1, lambda_q2; lambda_k1, lambda_k2": "lambda_q[r], lambda_k[r]",
        "lambda": "lambda_full; as a learned scalar lambda_layer, or lambda_heads for each head: lambda_form",
        "head_i, its norm": "context, normed",
        "the authors' code": "num_kv_heads, rope_base; DiffLlama besides norm_weight=False",
    }
    cost = (
        "time b t s h (2 k + v); memory 2 b h t s on the textbook path; half as many heads as mha cost the same; the "
        "cache holds g (2 k + v) numbers for each position"
    )
    paper = "Ye et al. 2024, Differential Transformer, arXiv:2410.05258, section 2.1, equations 1 to 3"
    equals = ("without the second map, the norm and its factor: mha",)
    traps = (
        "the factor after the norm is 1 - lambda_init, which is fixed; 1 - lambda is something else",
        "each head is normalised by itself: a norm over all heads at once is another function",
        "two softmaxes, each over its own scores, are subtracted; one softmax of the scores' difference is another "
        "function",
        "queries and keys of both maps are rotated by the same angles; the values are not rotated",
        "default widths: head_dim is half of what it is in mha, and the values are twice as wide as the keys",
    )

    lambda_init: float | None = None
    lambda_form: str = "vectors"
    depth: int = 1
    num_kv_heads: int | None = None
    use_norm: bool = True
    norm_weight: bool = True
    norm_eps: float = 0.00001
    rope_base: float | None = None
    rope_layout: str = "half"
    max_positions: int | None = None

    def __post_init__(self) -> None:
        num_maps = 2 * self.num_heads if type(self.num_heads) is int else 1
        if self.head_dim is None and type(self.d_model) is int and num_maps > 0:
            self.require(
                self.d_model % num_maps == 0,
                "d_model divisible by num_heads and by 2",
                f"d_model={self.d_model}, num_heads={self.num_heads}",
                "change one of them or set head_dim=",
            )
        super().__post_init__()
        self.check_number("lambda_init")
        self.check_positive("depth")
        start = self.lambda_init
        fits = start is None or 0 <= start < 1
        self.require(
            fits,
            "lambda_init in [0, 1)",
            repr(start),
            "it is the constant part of the second map's factor",
        )
        self.check_groups(self.num_kv_heads)
        self.check_one_of("lambda_form", ("vectors", "layer", "head"))
        self.check_flag("use_norm", "norm_weight")
        self.check_number("norm_eps", above=0.0)
        self.check_rotary()
        rotates = self.rope_base is not None
        for name in ("key_dim", "value_dim") if rotates else ("max_positions",):
            words = f"no {name} {'with' if rotates else 'without'} rope_base"
            fix = (
                "rotary positions are for self-attention: leave it out"
                if rotates
                else "nothing is rotated: leave it out"
            )
            self.require(getattr(self, name) is None, words, repr(getattr(self, name)), fix)

    def rotary_width(self) -> int:
        return 0 if self.rope_base is None else self.sizes()["k"]

    def meaning(self) -> dict[str, Any]:
        values = super().meaning() | {"lambda_init": rounded(self.lambda_init_value())}
        idle = ("depth",) if self.use_norm else ("depth", "norm_weight", "norm_eps")
        idle += ("lambda_init",) if not self.use_norm and self.lambda_form != "vectors" else ()
        return {name: value for name, value in values.items() if name not in idle}

    def lambda_init_value(self) -> float:
        """The constant part of the second map's factor: lambda_init, or its default for the depth."""
        return 0.8 - 0.6 * exp(-0.3 * (self.depth - 1)) if self.lambda_init is None else self.lambda_init

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads // 2
        widths = {"g": self.num_kv_heads or self.num_heads, "k": k, "v": self.value_head_dim or 2 * k, "r": 2}
        return super().sizes() | widths | ({"f": 1} if self.lambda_form == "layer" else {})

    def own_params(self) -> dict[str, Param]:
        replaced = {
            "w_q": Param("d h r k", "d"),
            "w_k": Param("i g r k", "i"),
            "w_v": Param("j g v", "j"),
            "b_q": Param("h r k", "d"),
            "b_k": Param("g r k", "i"),
            "b_v": Param("g v", "j"),
        }
        weights = {name: replaced.get(name, param) for name, param in super().own_params().items()}
        if self.lambda_form == "vectors":
            weights |= {"lambda_q": Param("r k", "k"), "lambda_k": Param("r k", "k")}
        elif self.lambda_form == "layer":
            weights |= {"lambda_layer": Param("f", "", init=self.lambda_init_value)}
        else:
            weights |= {"lambda_heads": Param("h", "", init=self.lambda_init_value)}
        return weights | ({"w_norm": Param("v", "v", init=1.0)} if self.use_norm and self.norm_weight else {})

    def arguments(self) -> dict[str, Arg]:
        return CrossAttentionConfig.arguments(self) if self.rope_base is None else super().arguments()

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        if self.rope_base is not None:
            for name in ("key", "value"):
                fix = "rotary positions are for self-attention: leave it out, or set rope_base=None"
                self.require(specs.get(name) is None, f"no {name} with rope_base", "some", fix)
        sizes = super().check(dtype, **specs)
        return {"s": sizes["t"]} | sizes

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s g r k", "v": "b s g v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        reasons = {}
        if self.rope_base is not None and not self.causal and self.window is None:
            reasons["keys_have_no_order"] = "scores depend on the distance of queries and keys"
        return (
            reasons
            | {
                "weights_add_up_to_one": "the weights are the difference of two maps",
                "indifferent_scores_share_evenly": "the weights are the difference of two maps",
                "a_large_bias_decides": "the weights are the difference of two maps",
                "twice_the_scores_square_the_weights": "the weights are the difference of two maps",
            }
            | (relations_broken_by_context_norm(self, "head") if self.use_norm else {})
        )


EXAMPLES = {
    "cross": Config(
        d_model=7,
        num_heads=3,
        head_dim=5,
        value_head_dim=2,
        key_dim=13,
        value_dim=11,
        output_dim=17,
        softcap=1.5,
        dropout=0.25,
        lambda_init=0.375,
    ),
    "causal": Config(
        d_model=5,
        num_heads=6,
        num_kv_heads=3,
        head_dim=6,
        scale=1.0,
        causal=True,
        window=(3, None),
        use_bias=False,
        depth=2,
        norm_weight=False,
        norm_eps=0.0625,
        rope_base=50.0,
        rope_layout="interleaved",
        max_positions=13,
    ),
    "number": Config(d_model=7, num_heads=2, head_dim=3, value_head_dim=5, lambda_init=0.25, lambda_form="layer"),
    "numbers": Config(
        d_model=5,
        num_heads=3,
        head_dim=2,
        value_head_dim=7,
        causal=True,
        lambda_init=0.25,
        lambda_form="head",
        use_norm=False,
    ),
}
