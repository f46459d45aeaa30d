"""Differential attention: the difference of two softmax maps, so that what both see cancels."""

from dataclasses import dataclass
from math import exp

from attn_np.contract import mha
from attn_np.contract._base import Param, require

# Under the root of the norm of every head.
EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class Config(mha.Config):
    """Fields of differential attention: those of multi-head attention, and what the second map is multiplied by.

    Attributes:
        d_model: width of queries and outputs.
        num_heads: how many heads attend, each with two maps.
        head_dim: width of one map's queries and keys; d_model / num_heads / 2 by default, which must then divide.
        value_head_dim: width of a head's values; 2 head_dim by default.
        key_dim: width of the key input; d_model by default.
        value_dim: width of the value input; key_dim by default.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        causal: query i sees the keys up to its own position, aligned at the last key.
        window: (left, right), how many keys before and after its own position a query sees; None is no limit.
        softcap: scores become softcap * tanh(scores / softcap).
        dropout: share of the weights set to 0 in training, after the maps are subtracted.
        use_bias: biases on the four projections.
        lambda_init: what the factor of the second map starts from, in [0, 1); from the depth by default.
        depth: number of the layer from 1; without lambda_init that is 0.8 - 0.6 exp(-0.3 (depth - 1)).
    """

    layer = "DifferentialAttention"
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
        "lambda": "factor",
        "head_i, its norm": "context, normed",
    }
    cost = "time b t s h (2 k + v); memory 2 b h t s; half as many heads as mha cost the same"
    paper = "Ye et al. 2024, Differential Transformer, arXiv:2410.05258, section 2.1, equations 1 to 3"
    equals = ("without the second map, the norm and its factor: mha",)
    traps = (
        "1 - lambda_init stands behind the norm and is fixed; 1 - lambda is something else",
        "the norm is of each head by itself: over all heads at once it is another function",
        "two softmaxes, each of them over its own scores; the softmax of a difference is one",
        "default widths: head_dim is half of what it is in mha, and the values are twice as wide as the keys",
    )

    lambda_init: float | None = None
    depth: int = 1

    def __post_init__(self) -> None:
        heads = 2 * self.num_heads if type(self.num_heads) is int else 1
        if self.head_dim is None and type(self.d_model) is int and heads > 0:
            require(
                self.d_model % heads == 0,
                self.variant,
                "d_model divisible by num_heads and by 2",
                f"d_model={self.d_model}, num_heads={self.num_heads}",
                "change one of them or set head_dim=",
            )
        super().__post_init__()
        self.number("lambda_init")
        self.positive("depth")
        start = self.lambda_init
        fits = start is None or 0 <= start < 1
        require(fits, self.variant, "lambda_init in [0, 1)", repr(start), "it is what the second map starts from")

    def start(self) -> float:
        """The constant part of the second map's factor: lambda_init, or what follows from the depth."""
        return 0.8 - 0.6 * exp(-0.3 * (self.depth - 1)) if self.lambda_init is None else self.lambda_init

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads // 2
        return super().sizes() | {"k": k, "v": self.value_head_dim or 2 * k, "r": 2}

    def own_params(self) -> dict[str, Param]:
        pairs = {
            "w_q": Param("d h r k", "d"),
            "w_k": Param("i h r k", "i"),
            "b_q": Param("h r k", "d"),
            "b_k": Param("h r k", "i"),
        }
        weights = {name: pairs.get(name, param) for name, param in super().own_params().items()}
        return weights | {
            "lambda_q": Param("r k", "k"),
            "lambda_k": Param("r k", "k"),
            "w_norm": Param("v", "v", start=1.0),
        }

    def cached(self) -> dict[str, str]:
        return {"k": "b s h r k", "v": "b s h v"} if self.causal else {}

    def exempt(self) -> dict[str, str]:
        return {
            "weights_add_up_to_one": "the weights are the difference of two maps",
            "indifferent_scores_share_evenly": "the weights are the difference of two maps",
            "a_large_bias_decides": "the weights are the difference of two maps",
            "twice_the_scores_square_the_weights": "the weights are the difference of two maps",
            "the_output_is_linear_in_the_values": "what the heads find is normalised",
            "the_output_is_the_weights_times_the_values": "what the heads find is normalised",
        }


EXAMPLES = {
    "cross": Config(
        d_model=7,
        num_heads=3,
        head_dim=5,
        value_head_dim=2,
        key_dim=13,
        value_dim=11,
        softcap=1.5,
        dropout=0.25,
        lambda_init=0.375,
    ),
    "causal": Config(d_model=20, num_heads=2, scale=1.0, causal=True, window=(3, None), use_bias=False, depth=2),
}
