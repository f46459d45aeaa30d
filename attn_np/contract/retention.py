"""Retention: attention without a softmax, whose weights decay with the distance at each head's own rate."""

from dataclasses import dataclass
from math import log
from typing import Any

from attn_np.contract._base import Param, Preset
from attn_np.contract._rotary import LAYOUTS
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads

SPACINGS = ("closed", "open")
DECAY_RULES = ("retnet", "alibi")


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of retention.

    Attributes:
        num_heads: how many heads, each with a decay of its own.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        activation: "silu", of queries, keys and values; None: they are the projections.
        exponent: sets the decays of "retnet": head h decays by the factor 1 - 2^-(exponent + h) per position.
        form: how it is computed, with the same result: "recurrent" passes a state from position to position, "chunked"
            scores all pairs within a chunk and passes a state from chunk to chunk, and "parallel" takes the sequence
            as one chunk. "auto" is "recurrent" for one position, "chunked" for more than `chunk_size`, and else
            "parallel", also in `torch.export` programs for any length.
        decay: for each head the factor by which its state decays per position, instead of those of `decay_rule`.
        decay_rule: "retnet": by `exponent`; "alibi": head h of H decays by e^-m with ALiBi's slope
            m = 2^(-8 (h + 1) / H).
        norm: "layer" subtracts the mean of a head's context and divides by the deviation, "rms" divides only, "none"
            leaves it.
        norm_over: "head": each head by itself; "all": all heads of a position together.
        norm_weight: "own": the norm has a weight for each dimension of each head; None: no weight.
        norm_eps: added to the mean square in that norm.
        use_gate: the normed context is multiplied by a function of a projection of the input.
        gate_activation: that function, "silu" or "sigmoid".
        use_bias: biases on the projections.
        rope_base: queries and keys are rotated by their positions, their first pair by 1 per position and the last by
            about 1 / rope_base; None: no rotation.
        rope_layout: "interleaved", a pair is two neighbours (the authors' code), or "half", one dimension of each half.
        angle_spacing: "closed": pair i of n rotates by rope_base^(-i / (n - 1)), as in the authors' code; "open": by
            rope_base^(-i / n), as in `rotary`.
    """

    class_name = "Retention"
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
        "slope_rate, norm, output_gate (MiniMax)": "the negative logarithm of decay, w_norm, w_gate",
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
        "the authors' code spaces the angles of n pairs by n - 1, angle_spacing='closed'; others by n, as in `rotary`",
        "the paper's three normalisations of scores only scale a head's context, which the norm undoes but for eps",
        "the norm is over each head's width, not over all heads together; that of lightning attention is over all",
        "MiniMax's rates are ALiBi's slopes times 1 - layer / (layers - 1 + 1e-5) + 1e-5: late layers forget less",
    )

    not_in_results = ("form", "chunk_size")

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    activation: str | None = None
    exponent: float = 5.0
    form: str = "auto"
    chunk_size: int = 64
    decay: tuple[float, ...] | None = None
    decay_rule: str = "retnet"
    norm: str = "layer"
    norm_over: str = "head"
    norm_weight: str | None = None
    norm_eps: float = 0.00001
    use_gate: bool = True
    gate_activation: str = "silu"
    use_bias: bool = False
    rope_base: float | None = None
    rope_layout: str = "interleaved"
    angle_spacing: str = "closed"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("exponent", above=0.0)
        self.check_number("norm_eps", above=0.0)
        self.check_number("scale")
        if self.activation is not None:
            self.check_one_of("activation", ("silu",))
        self.check_one_of("decay_rule", DECAY_RULES)
        self.check_one_of("norm", ("layer", "rms", "none"))
        self.check_one_of("norm_over", ("head", "all"))
        if self.norm_weight is not None:
            self.check_one_of("norm_weight", ("own",))
        self.check_one_of("gate_activation", ("silu", "sigmoid"))
        self.check_flag("use_gate", "use_bias")
        self.check_number("rope_base", above=1.0)
        self.check_one_of("rope_layout", LAYOUTS)
        self.check_one_of("angle_spacing", SPACINGS)

        self.require(
            self.norm != "none" or (self.norm_over == "head" and self.norm_weight is None),
            "a norm for norm_over= or norm_weight=",
            "norm='none'",
            "leave them out",
        )
        self.require(
            self.use_gate or self.gate_activation == "silu",
            "a gate for gate_activation=",
            "use_gate=False",
            "leave gate_activation out",
        )
        factors = self.decay
        self.require(
            factors is None or self.decay_rule == "retnet",
            "decay= or decay_rule=, not both",
            f"decay={factors}, decay_rule={self.decay_rule!r}",
            "leave one of them out",
        )
        are_numbers = isinstance(factors, tuple) and all(type(x) in (int, float) for x in factors)
        are_factors = are_numbers and all(0 < x <= 1 for x in factors or ())
        self.require(
            factors is None or (are_factors and len(factors) == self.num_heads),
            f"decay to be {self.num_heads} numbers above 0 and at most 1",
            repr(factors),
            "give one factor for each head",
        )
        width = self.sizes()["k"]
        self.require(
            self.rope_base is None or width % 2 == 0,
            "an even head width with rope_base",
            width,
            "set head_dim=, dimensions are rotated in pairs",
        )

    def meaning(self) -> dict[str, Any]:
        values = super().meaning() | {"decay": self.log_decays()}
        idle = ["exponent", "decay_rule", "rope_base", "angle_spacing"]
        idle += ["norm_eps"] if self.norm == "none" else []
        idle += ["rope_layout"] if self.rope_base is None else []
        values |= {} if self.rope_base is None else {"frequencies": self.frequencies(1)}
        return {name: value for name, value in values.items() if name not in idle}

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The angle between neighbouring positions for each pair of dimensions, at every length."""
        n, base = self.sizes()["k"] // 2, self.rope_base or 1.0
        return tuple(base ** (-i / (max(n - 1, 1) if self.angle_spacing == "closed" else n)) for i in range(n))

    def cos_sin_factor(self) -> float:
        """Factor on cosines and sines."""
        return 1.0

    def log_decays(self) -> tuple[float, ...]:
        """Logarithm of the factor by which each head's state decays per position."""
        if self.decay is not None:
            return tuple(log(factor) for factor in self.decay)
        if self.decay_rule == "alibi":
            return tuple(-(2 ** (-8 * (h + 1) / self.num_heads)) for h in range(self.num_heads))
        return tuple(log(1 - 2 ** -(self.exponent + h)) for h in range(self.num_heads))

    def own_params(self) -> dict[str, Param]:
        weights = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_gate": Param("d h v", "d"),
            "w_o": Param("h v o", "h v"),
        }
        biases = {
            "b_q": Param("h k", "d"),
            "b_k": Param("h k", "d"),
            "b_v": Param("h v", "d"),
            "b_gate": Param("h v", "d"),
            "b_o": Param("o", "h v"),
        }
        if not self.use_gate:
            del weights["w_gate"], biases["b_gate"]
        if self.norm_weight is not None:
            weights["w_norm"] = Param("h v", "v", init=1.0)
        return weights | biases if self.use_bias else weights

    def broken_relations(self) -> dict[str, str]:
        reasons = {"heads_stand_alone": "each head decays at a rate of its own"}
        if self.activation is not None:
            reasons["the_scale_belongs_to_the_queries"] = "the queries go through the activation first"
        if self.norm_over == "all":
            reasons["heads_stand_alone"] = "the norm of a head depends on the other heads"
        return reasons


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
    "lightning": Preset(
        title="Lightning attention",
        idea=(
            "Linear attention whose state decays, as in retention, with positions left to the decay alone: silu of the "
            "projections instead of a feature map, no scale, one norm over all heads and a sigmoid as the gate."
        ),
        paper=(
            "MiniMax 2025, MiniMax-01: Scaling Foundation Models with Lightning Attention, arXiv:2501.08313, "
            "section 2.2; each layer of the model has rates of its own, given by decay="
        ),
        fields={
            "scale": 1.0,
            "activation": "silu",
            "decay_rule": "alibi",
            "norm": "rms",
            "norm_over": "all",
            "norm_weight": "own",
            "norm_eps": 0.000001,
            "gate_activation": "sigmoid",
        },
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
        angle_spacing="open",
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
    "pairs": Config(d_model=6, num_heads=2, output_dim=5, form="parallel", use_bias=True),
    "lightning": Config(
        d_model=5,
        num_heads=2,
        head_dim=3,
        value_head_dim=7,
        scale=0.75,
        activation="silu",
        chunk_size=2,
        decay_rule="alibi",
        norm="rms",
        norm_over="all",
        norm_weight="own",
        gate_activation="sigmoid",
    ),
}
