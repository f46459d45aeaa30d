"""Gated delta rule: the state decays by a factor that each position chooses, and the delta rule writes into it."""

from dataclasses import dataclass
from math import exp, expm1, log
from typing import Any

from attn_np.contract._base import Param
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of the gated delta rule.

    Attributes:
        num_key_heads: how many heads of queries and keys there are; num_heads by default, which it must divide.
            Each serves num_heads / num_key_heads neighbouring value heads.
        norm_eps: added under the roots of the norms of contexts, and of queries and keys.
        qk_norm_eps: added under the roots of the norms of queries and keys instead of norm_eps.
        conv_size: how many positions, the current one last, a convolution spans; it acts on each dimension of queries,
            keys and values before SiLU. None: no convolution.
    """

    class_name = "GatedDeltaRule"
    family = "linear"
    projects = {"w_a": "dt_bias", "w_q_conv": False, "w_k_conv": False, "w_v_conv": False}
    title = "Gated delta rule"
    idea = (
        "The delta rule replaces one value at a time and cannot clear its state; a decaying state forgets everything "
        "at once. Here each position does both: it says how much of the whole state stays, and what is written for "
        "its own key."
    )
    formula = (
        r"s_t = \alpha_t s_{t-1} + \beta_t\, k_t \left(\mathrm{silu}(v_t) - \alpha_t s_{t-1}^\top k_t\right)^\top,"
        r"\quad c_t = \tfrac{1}{\sqrt{K}}\, s_t^\top q_t,\quad "
        r"\alpha_t = e^{-e^{a_{\log}}\, \mathrm{softplus}(x_t w_a + b_{dt})},\quad \beta_t = \sigma(x_t w_\beta),\quad "
        r"y = (\mathrm{rms}(c) \odot \mathrm{silu}(x w_{gate}))\, w_o"
    )
    notation = {
        "S_t": "states on the tape, state in the cache: transposed, keys by values",
        "v_t of the paper, after its SiLU": "v_silu on the tape; q_unit and k_unit are after SiLU and norm",
        "alpha_t": "exp of log_decay on the tape, log_decay = -exp(a_log) softplus(a) with a = x w_a + dt_bias",
        "gamma_t (product of alphas in a chunk)": "exp of the running sum of log_decay",
        "beta_t, and u_t (pseudo-values)": "beta, and v_new: the value written for a key",
        "conv1d.weight of Qwen3-Next": "w_q_conv, w_k_conv, w_v_conv: there one array for q, k and v",
        "W, U": "w, u: what a chunk removes from the state before it, and what it would write into an empty one",
        "A_log, dt_bias, in_proj_qkvz, in_proj_ba of Qwen3-Next": "a_log, dt_bias; w_q w_k w_v w_gate, w_beta w_a",
        "A and the step at the start": "from 1 to 16 and from 0.001 to 0.1, spread over the heads where Mamba 2 draws",
    }
    cost = (
        "time b t h k v, plus b t c h (k + v + c) within chunks of c, plus b t x (2 g k + h v) for convolutions; the "
        "state is b h k v"
    )
    paper = (
        "Yang et al. 2024, Gated Delta Networks: Improving Mamba2 with Delta Rule, arXiv:2412.06464, equations 10 and "
        "following; the layer's gates and norms as in Qwen3-Next"
    )
    equals = (
        "the three forms: each other",
        "alpha_t = 1, without the gate and with values that silu leaves alone: delta",
    )
    traps = (
        "the state decays before the key's old value is looked up, not after",
        "products of alphas are stored as sums of logarithms and subtracted pair by pair: their quotients overflow",
        "padding must neither decay the state nor write",
        "silu is on queries, keys and values, the norm on queries and keys alone",
        "published models have a short convolution on q, k and v, conv_size=4: without it their weights do not fit",
        "the convolution looks back: the last of its weights is that of the current position",
    )

    not_in_results = ("form", "chunk_size")

    d_model: int
    num_heads: int
    num_key_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    form: str = "auto"
    chunk_size: int = 64
    norm_eps: float = 0.000001
    qk_norm_eps: float | None = None
    conv_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_key_heads", "conv_size")
        self.check_number("norm_eps", above=0.0)
        self.check_number("qk_norm_eps", above=0.0)
        fits = self.num_heads % (self.num_key_heads or self.num_heads) == 0
        got = f"num_heads={self.num_heads}, num_key_heads={self.num_key_heads}"
        self.require(fits, "num_heads divisible by num_key_heads", got, "change one of them")

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes() | {"g": self.num_key_heads or self.num_heads}
        return sizes if self.conv_size is None else sizes | {"x": self.conv_size}

    def own_params(self) -> dict[str, Param]:
        convolutions = {
            "w_q_conv": Param("x g k", "x"),
            "w_k_conv": Param("x g k", "x"),
            "w_v_conv": Param("x h v", "x"),
        }
        return ({} if self.conv_size is None else convolutions) | {
            "w_q": Param("d g k", "d"),
            "w_k": Param("d g k", "d"),
            "w_v": Param("d h v", "d"),
            "w_gate": Param("d h v", "d"),
            "w_beta": Param("d h", "d"),
            "w_a": Param("d h", "d"),
            "a_log": Param("h", "", init=self.initial_a_log),
            "dt_bias": Param("h", "", init=self.initial_dt_bias),
            "w_norm": Param("v", "", init=1.0),
            "w_o": Param("h v o", "h v"),
        }

    def initial_a_log(self) -> tuple[float, ...]:
        """Initial values of `a_log`."""
        return log_rates(self.num_heads)

    def initial_dt_bias(self) -> float | tuple[float, ...]:
        """Initial values of `dt_bias`."""
        return step_biases(self.num_heads)

    def cache_axes(self) -> dict[str, str]:
        windows = {"q_conv": "b x g k", "k_conv": "b x g k", "v_conv": "b x h v"}
        return super().cache_axes() | ({} if self.conv_size is None else windows)

    def qk_eps(self) -> float:
        """What is added under the roots of the norms of queries and keys."""
        return self.norm_eps if self.qk_norm_eps is None else self.qk_norm_eps

    def meaning(self) -> dict[str, Any]:
        return super().meaning() | {"qk_norm_eps": self.qk_eps()}


def log_rates(heads: int) -> tuple[float, ...]:
    """The logarithms of rates from 1 to 16."""
    return spread(log(1.0), log(16.0), heads)


def step_biases(heads: int) -> tuple[float, ...]:
    """Biases of which the softplus makes steps from 0.001 to 0.1."""
    return tuple(log(expm1(exp(step))) for step in spread(log(0.001), log(0.1), heads))


def spread(low: float, high: float, n: int) -> tuple[float, ...]:
    """n numbers from low to high at equal distances; a single one is in the middle."""
    return tuple(low + (high - low) * i / (n - 1) for i in range(n)) if n > 1 else ((low + high) / 2,)


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2, output_dim=5, form="parallel"),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, form="recurrent", norm_eps=0.25, conv_size=2),
    "chunked": Config(
        d_model=5, num_heads=6, num_key_heads=2, head_dim=3, value_head_dim=7, chunk_size=2, conv_size=3,
        qk_norm_eps=0.25,
    ),
}  # fmt: skip
