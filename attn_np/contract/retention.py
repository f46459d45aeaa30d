"""Retention: attention without a softmax, whose weights decay with the distance at each head's own rate."""

from dataclasses import dataclass
from math import log

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param, Preset
from attn_np.contract._rotary import LAYOUTS

FORMS = ("auto", "parallel", "recurrent", "chunked")
SPACINGS = ("closed", "open")


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of retention.

    Attributes:
        d_model: width of queries and outputs.
        num_heads: how many heads, each with a decay of its own.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide.
        value_head_dim: width of a head's values; head_dim by default.
        exponent: head h decays by the factor 1 - 2^-(exponent + h) per position.
        form: how it is computed, with the same result: "recurrent" passes a state from position to position, "chunked"
            scores all pairs within a chunk and passes a state from chunk to chunk, and "parallel" takes the sequence
            as one chunk. "auto": "chunked" where there is more than one chunk, but "parallel" in what `torch.export`
            makes for any length.
        chunk_size: how many positions a chunk has; the last one may have fewer.
        decay: for each head the factor by which its state decays per position, instead of those of `exponent`.
        norm: "layer" subtracts the mean of a head's context and divides by the deviation, "rms" divides only, "none"
            leaves it.
        norm_eps: added to the mean square in that norm.
        use_gate: the normed context is multiplied by silu of a projection of the input.
        use_bias: biases on the projections.
        rope_base: queries and keys are rotated by their positions, their first pair by 1 per position and the last by
            about 1 / rope_base; None: no rotation.
        rope_layout: "interleaved", a pair is two neighbours (the authors' code), or "half", one dimension of each half.
        spacing: "closed": pair i of n rotates by rope_base^(-i / (n - 1)), as in the authors' code; "open": by
            rope_base^(-i / n), as in `rotary`.
    """

    layer = "Retention"
    family = "linear"
    title = "Retention"
    idea = (
        "A recurrent network whose state decays by a fixed factor can also be written as attention: the weight of a "
        "key is its score times the factor to the power of the distance. So it trains in parallel like attention and "
        "runs with a state of fixed size like a recurrent network."
    )
    formula = (
        r"s_t = \gamma_h s_{t-1} + k_t v_t^\top,\quad c_t = \tfrac{1}{\sqrt{K}}\, q_t^\top s_t,\quad "
        r"y = (\mathrm{swish}(x w_{gate}) \odot \mathrm{norm}_h(c))\, w_o,\quad \gamma_h = 1 - 2^{-5-h}"
    )
    notation = {
        "Q, K, V": "q, k, v; the factor 1/sqrt(K) is on q when it is used",
        "D_nm = gamma^(n-m)": "decay on the tape, 0 for later keys",
        "R_i (state after chunk i), S_n (after position n)": "states on the tape, state in the cache",
        "W_G, W_O": "w_gate, w_o",
        "Theta_n = e^(i n theta)": "q_rot, k_rot on the tape: pairs of q and k rotated by n theta",
        "GroupNorm_h": "normed on the tape: over each head's width, without parameters",
    }
    cost = (
        "time b t h k v, plus b t c h (k + v) within chunks of c (parallel: c = t) and b (t / c)^2 h k v between them; "
        "the state is b h k v"
    )
    paper = (
        "Sun et al. 2023, Retentive Network: A Successor to Transformer for Large Language Models, arXiv:2307.08621, "
        "equations 5 to 8"
    )
    equals = (
        "the three forms: each other",
        "norm='none', use_gate=False: the function `recur` with rule='gated', between the projections",
    )
    traps = (
        "padding that counts as a position decays the state: distances are counted in real positions",
        "within a chunk a query reads the state before the chunk, decayed by all positions of the chunk up to its own",
        "the paper rotates q and k by their positions, e^(i n theta); without rope_base they are not rotated, and "
        "weights that were trained with it do not fit",
        "the authors' code spaces the angles of n pairs by n - 1, spacing='closed'; others by n, as in `rotary`",
        "the paper's three normalisations of scores only scale a head's context, which the norm undoes but for eps",
        "the norm is over each head's width, not over all heads together",
    )

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    exponent: float = 5.0
    form: str = "auto"
    chunk_size: int = 64
    decay: tuple[float, ...] | None = None
    norm: str = "layer"
    norm_eps: float = 0.00001
    use_gate: bool = True
    use_bias: bool = False
    rope_base: float | None = None
    rope_layout: str = "interleaved"
    spacing: str = "closed"

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "head_dim", "value_head_dim", "chunk_size")
        self.check_number("exponent", above=0.0)
        self.check_number("norm_eps", above=0.0)
        self.check_one_of("form", FORMS)
        self.check_one_of("norm", ("layer", "rms", "none"))
        self.check_flag("use_gate", "use_bias")
        self.check_number("rope_base", above=1.0)
        self.check_one_of("rope_layout", LAYOUTS)
        self.check_one_of("spacing", SPACINGS)
        self.check_divisible("d_model", "num_heads", unless="head_dim")

        factors = self.decay
        are_numbers = isinstance(factors, tuple) and all(type(x) in (int, float) for x in factors)
        are_factors = are_numbers and all(0 < x <= 1 for x in factors or ())
        _base.require(
            factors is None or (are_factors and len(factors) == self.num_heads),
            self.variant,
            f"decay to be {self.num_heads} numbers above 0 and at most 1",
            repr(factors),
            "give one factor for each head",
        )
        width = self.sizes()["k"]
        _base.require(
            self.rope_base is None or width % 2 == 0,
            self.variant,
            "an even head width with rope_base",
            width,
            "set head_dim=, dimensions are rotated in pairs",
        )

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The angle between neighbouring positions for each pair of dimensions, at every length."""
        n, base = self.sizes()["k"] // 2, self.rope_base or 1.0
        return tuple(base ** (-i / (max(n - 1, 1) if self.spacing == "closed" else n)) for i in range(n))

    def amplitude(self) -> float:
        """Factor on cosines and sines."""
        return 1.0

    def decays(self) -> tuple[float, ...]:
        """Logarithm of the factor by which each head's state decays per position."""
        if self.decay is not None:
            return tuple(log(factor) for factor in self.decay)
        return tuple(log(1 - 2 ** -(self.exponent + h)) for h in range(self.num_heads))

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads
        return {"d": self.d_model, "h": self.num_heads, "k": k, "v": self.value_head_dim or k}

    def own_params(self) -> dict[str, Param]:
        weights = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_gate": Param("d h v", "d"),
            "w_o": Param("h v d", "h v"),
        }
        biases = {
            "b_q": Param("h k", "d"),
            "b_k": Param("h k", "d"),
            "b_v": Param("h v", "d"),
            "b_gate": Param("h v", "d"),
            "b_o": Param("d", "h v"),
        }
        if not self.use_gate:
            del weights["w_gate"], biases["b_gate"]
        return weights | biases if self.use_bias else weights

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d"), "mask": Arg("b t", "mask", optional=True)}

    def cached(self) -> dict[str, str]:
        return {"state": "b h k v"}

    def reach(self) -> int | None:
        return 1

    def exempt(self) -> dict[str, str]:
        return {"heads_stand_alone": "each head decays at a rate of its own"}


PRESETS = {
    "retnet": Preset(
        title="Retention with rotated queries and keys",
        idea=(
            "The factor between two neighbouring positions is a complex number: its magnitude makes the past decay, "
            "its angle rotates pairs of the queries and keys, so that scores also depend on the distance."
        ),
        paper="Sun et al. 2023, RetNet, arXiv:2307.08621, section 2.1, equations 3 to 6",
        fields={"rope_base": 10000.0},
    ),
}

EXAMPLES = {
    "chunked": Config(
        d_model=5,
        num_heads=2,
        head_dim=6,
        value_head_dim=3,
        exponent=0.5,
        chunk_size=2,
        rope_base=50.0,
    ),
    "recurrent": Config(
        d_model=7,
        num_heads=3,
        head_dim=6,
        value_head_dim=2,
        exponent=1.0,
        form="recurrent",
        norm="rms",
        norm_eps=0.25,
        rope_base=50.0,
        rope_layout="half",
        spacing="open",
    ),
    "plain": Config(
        d_model=7,
        num_heads=3,
        head_dim=5,
        value_head_dim=2,
        chunk_size=3,
        decay=(0.9, 1.0, 0.25),
        norm="none",
        use_gate=False,
        use_bias=True,
    ),
    "pairs": Config(d_model=6, num_heads=2, form="parallel", use_bias=True),
}
