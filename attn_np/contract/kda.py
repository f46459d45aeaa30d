"""Kimi delta attention: the gated delta rule with a decay for every channel of the keys."""

from dataclasses import dataclass
from math import expm1, log

from attn_np.contract import gated_delta
from attn_np.contract._base import Param


@dataclass(frozen=True, kw_only=True)
class Config(gated_delta.Config):
    """Fields of Kimi delta attention: those of the gated delta rule and the width of its latents.

    Attributes:
        rank: width of the latents that decays and output gates are made from; that of a head's values by default.
    """

    class_name = "KimiDeltaAttention"
    family = "linear"
    projects = {**gated_delta.Config.projects, "w_a_up": "dt_bias", "w_gate_up": "b_gate"}
    title = "Kimi delta attention"
    idea = (
        "The gated delta rule forgets all of a head's state at one rate. Here every channel of the keys has a decay of "
        "its own that each position chooses, so that a head keeps some things long and others briefly."
    )
    formula = (
        r"s_t = \left(I - \beta_t k_t k_t^\top\right) \mathrm{diag}(\alpha_t)\, s_{t-1} + \beta_t\, k_t v_t^\top,"
        r"\quad c_t = \tfrac{1}{\sqrt{K}}\, s_t^\top q_t,\quad "
        r"\alpha_t = e^{-e^{a}\, \mathrm{softplus}(x_t w_{a,down} w_{a,up} + b_{dt})},\quad "
        r"\beta_t = \sigma(x_t w_\beta),\quad "
        r"y = (\mathrm{rms}(c) \odot \sigma(x w_{gate,down} w_{gate,up} + b_{gate}))\, w_o"
    )
    notation = {
        "S_t": "states on the tape, state in the cache",
        "v_t of the paper, after its SiLU": "v_silu on the tape; q_unit and k_unit are after SiLU and norm",
        "alpha_t": "decay on the tape, exp of log_decay = -exp(a_log) softplus(a)",
        "W_alpha down, up": "w_a_down, w_a_up; a = x w_a_down w_a_up + dt_bias",
        "W_g down, up": "w_gate_down, w_gate_up, b_gate",
        "f_proj, g_proj, b_proj, A_log of the authors' code": "w_a_down w_a_up, w_gate_down w_gate_up, w_beta, a_log",
        "W, U": "w, u: what a chunk removes from the state before it, and what it would write into an empty one",
    }
    cost = (
        "time b t h k v, plus b t c h (k + v + c) within chunks of c, plus b t x (2 g k + h v) for convolutions; the "
        "state is b h k v"
    )
    paper = (
        "Kimi Team 2025, Kimi Linear: An Expressive, Efficient Attention Architecture, arXiv:2510.26692, section 3, "
        "equation 1 and following"
    )
    equals = (
        "the three forms: each other",
        "decays alike in all channels and another gate: gated_delta",
    )
    traps = (
        "the channels of the state decay before the key's old value is looked up, not after",
        "a decay belongs to a channel of the keys, a row of the state; those of the values have none",
        "quotients of products of decays overflow: halve chunks, decay keys to the middle and queries from there",
        "the output gate is a sigmoid, where the gated delta rule has SiLU",
        "decays and gates come from latents without a nonlinearity between their two projections",
        "padding must neither decay the state nor write",
    )

    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("rank")

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {"z": self.rank or sizes["v"]}

    def own_params(self) -> dict[str, Param]:
        others = super().own_params()
        del others["w_a"], others["w_gate"]
        return others | {
            "w_a_down": Param("d z", "d"),
            "w_a_up": Param("z h k", "z"),
            "dt_bias": Param("h k", "", init=self.initial_dt_bias),
            "w_gate_down": Param("d z", "d"),
            "w_gate_up": Param("z h v", "z"),
            "b_gate": Param("h v", "z"),
        }

    def initial_dt_bias(self) -> float:
        """Initial value of `dt_bias`: the softplus makes a step of 0.01 of it."""
        return log(expm1(0.01))


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2, output_dim=5, form="parallel"),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, rank=2, form="recurrent", norm_eps=0.25, conv_size=2),
    "chunked": Config(
        d_model=5, num_heads=6, num_key_heads=2, head_dim=3, value_head_dim=7, rank=11, chunk_size=2, conv_size=3,
        qk_norm_eps=0.25,
    ),
}  # fmt: skip
