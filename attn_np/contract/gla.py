"""Gated linear attention: every channel of the keys has a decay of its own, which each position chooses."""

from dataclasses import dataclass

from attn_np.contract._base import Param
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of gated linear attention.

    Attributes:
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide. The
            authors' models take half of it.
        rank: width of the latent that the decays are made from.
        temperature: a decay is a sigmoid to the power of 1 / temperature: the larger, the longer the memory.
        norm_eps: added to the mean square in the norm of each head's context.
    """

    class_name = "GatedLinearAttention"
    family = "linear"
    projects = {"w_a_up": "b_a"}
    title = "Gated linear attention"
    idea = (
        "A state that decays at a fixed rate forgets whatever the text says. Here each position chooses from its own "
        "input how much of every channel of the keys stays, and the whole is still computed by matrix products."
    )
    formula = (
        r"s_t = \mathrm{diag}(\alpha_t)\, s_{t-1} + k_t v_t^\top,\quad c_t = \tfrac{1}{\sqrt{K}}\, s_t^\top q_t,\quad "
        r"\alpha_t = \sigma(x_t w_{a,down} w_{a,up} + b_a)^{1/\tau},\quad "
        r"y = (\mathrm{rms}(c) \odot \mathrm{silu}(x w_{gate}))\, w_o"
    )
    notation = {
        "S_t": "states on the tape, state in the cache",
        "alpha_t": "decay on the tape, exp of log_decay = -softplus(-a) / temperature with a = x w_a_down w_a_up + b_a",
        "W_alpha^1, W_alpha^2, b_alpha": "w_a_down, w_a_up, b_a",
        "tau": "temperature",
        "W_r (output gate)": "w_gate; the paper's b_r is 0, as in the authors' code",
        "P (scores within a chunk)": "scores on the tape: with their decays, 0 for later keys",
        "LN": "normed on the tape: by the root mean square, with w_norm, as in the authors' code",
    }
    cost = "time b t h k v, plus b t c h (k + v) within chunks of c; the state is b h k v"
    paper = (
        "Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv:2312.06635, "
        "equation 3, sections 4.2 and 4.4"
    )
    equals = ("the three forms: each other", "decays of 1, without the gate and the norm: linear without its features")
    traps = (
        "a decay belongs to a channel of the keys, a row of the state; those of the values have none",
        "quotients of products of decays overflow: halve chunks, decay keys to the middle and queries from there",
        "1 / temperature is an exponent of the sigmoid; the temperature is no divisor of its argument",
        "padding must not decay the state",
        "a position's own decay acts on the state before it, not on what it writes",
    )

    not_in_results = ("form", "chunk_size")

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    rank: int = 16
    temperature: float = 16.0
    form: str = "auto"
    chunk_size: int = 64
    norm_eps: float = 0.000001

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("rank")
        self.check_number("temperature", above=0.0)
        self.check_number("norm_eps", above=0.0)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"z": self.rank}

    def own_params(self) -> dict[str, Param]:
        return {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_gate": Param("d h v", "d"),
            "w_a_down": Param("d z", "d"),
            "w_a_up": Param("z h k", "z"),
            "b_a": Param("h k", "z"),
            "w_norm": Param("v", "", init=1.0),
            "w_o": Param("h v o", "h v"),
        }


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2, output_dim=7, rank=5, form="parallel"),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, rank=2, temperature=0.5, form="recurrent", norm_eps=0.25),
    "chunked": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, rank=11, temperature=2.0, chunk_size=2),
}
