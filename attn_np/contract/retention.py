"""Retention: attention without a softmax, whose weights fade with the distance at each head's own rate."""

from dataclasses import dataclass
from math import log

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param

FORMS = ("parallel", "recurrent", "chunked")


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of retention.

    Attributes:
        d_model: width of queries and outputs.
        num_heads: how many heads, each with a decay of its own.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        exponent: head h fades by 1 - 2^-(exponent + h) with each position.
        form: how it is computed, with the same result: "parallel" scores all pairs, "recurrent" walks along the
            sequence with a state, "chunked" does the one within chunks and the other between them.
        chunk_size: positions of a chunk.
        norm: "layer" subtracts the mean of a head's context and divides by the deviation, "rms" divides only.
        eps: added to the mean square in that norm.
        use_bias: biases on the five projections.
    """

    layer = "Retention"
    family = "linear"
    title = "Retention"
    idea = (
        "A recurrent network whose state fades by a fixed factor can also be written as attention: the weight of a key "
        "is its score times the factor to the power of the distance. So it trains in parallel like attention and runs "
        "with a state of fixed size like a recurrent network."
    )
    formula = (
        r"s_t = \gamma_h s_{t-1} + k_t v_t^\top,\quad c_t = \tfrac{1}{\sqrt{K}}\, q_t^\top s_t,\quad "
        r"y = (\mathrm{swish}(x w_g) \odot \mathrm{norm}_h(c))\, w_o,\quad \gamma_h = 1 - 2^{-5-h}"
    )
    notation = {
        "Q, K, V": "q, k, v; the factor 1/sqrt(K) is on q when it is used",
        "D_nm = gamma^(n-m)": "decay on the tape, 0 for later keys",
        "R_i (state after chunk i), S_n (after position n)": "states on the tape, state in the cache",
        "W_G, W_O": "w_g, w_o",
        "GroupNorm_h": "normed on the tape: over each head's width, without parameters",
    }
    cost = "time b t h k v, plus b t c h (k + v) within chunks of c (parallel: c = t); the state is b h k v"
    paper = (
        "Sun et al. 2023, Retentive Network: A Successor to Transformer for Large Language Models, arXiv:2307.08621, "
        "equations 5 to 8"
    )
    equals = ("the three forms: each other",)
    traps = (
        "padding that counts as a position lets the state fade: distances are counted in real positions",
        "within a chunk a query reads the state before it faded by its place in the chunk, its own included",
        "the paper turns q and k with xPos; here they are not turned, so weights trained with it do not fit",
        "the paper's three normalisations of scores scale a head's context, which the norm takes back but for eps",
        "the norm is over each head's width, not over all heads together",
    )

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    exponent: float = 5.0
    form: str = "parallel"
    chunk_size: int = 64
    norm: str = "layer"
    eps: float = 0.00001
    use_bias: bool = False

    def __post_init__(self) -> None:
        self.positive("d_model", "num_heads", "head_dim", "value_head_dim", "chunk_size")
        self.number("exponent", above=0.0)
        self.number("eps", above=0.0)
        self.one_of("form", FORMS)
        self.one_of("norm", ("layer", "rms"))
        self.flag("use_bias")
        if self.head_dim is None:
            _base.require(
                self.d_model % self.num_heads == 0,
                self.variant,
                "d_model divisible by num_heads",
                f"d_model={self.d_model}, num_heads={self.num_heads}",
                "change one of them or set head_dim=",
            )

    def decays(self) -> tuple[float, ...]:
        """Logarithm of the factor by which each head's state fades with a position."""
        return tuple(log(1 - 2 ** -(self.exponent + h)) for h in range(self.num_heads))

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads
        return {"d": self.d_model, "h": self.num_heads, "k": k, "v": self.value_head_dim or k}

    def own_params(self) -> dict[str, Param]:
        weights = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_g": Param("d h v", "d"),
            "w_o": Param("h v d", "h v"),
        }
        biases = {
            "b_q": Param("h k", "d"),
            "b_k": Param("h k", "d"),
            "b_v": Param("h v", "d"),
            "b_g": Param("h v", "d"),
            "b_o": Param("d", "h v"),
        }
        return weights | biases if self.use_bias else weights

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d"), "mask": Arg("b t", "mask", optional=True)}

    def cached(self) -> dict[str, str]:
        return {"state": "b h k v"}

    def reach(self) -> int | None:
        return 1

    def exempt(self) -> dict[str, str]:
        return {"heads_stand_alone": "each head fades at a rate of its own"}


EXAMPLES = {
    "pairs": Config(d_model=6, num_heads=2, use_bias=True),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, exponent=1.0, form="recurrent", norm="rms", eps=0.25),
    "chunked": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, exponent=0.5, form="chunked", chunk_size=2),
}
