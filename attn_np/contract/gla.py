"""Gated linear attention: every channel of the keys has a decay of its own, which each position chooses."""

from dataclasses import dataclass

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param

FORMS = ("auto", "parallel", "recurrent", "chunked")


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of gated linear attention.

    Attributes:
        d_model: width of the input.
        num_heads: how many heads, each with a state.
        head_dim: width of a head's queries and keys; d_model / num_heads by default, which must then divide. The
            authors' models take half of it.
        value_head_dim: width of a head's values; head_dim by default.
        output_dim: width of the outputs; d_model by default.
        rank: width of the latent that the decays are made from.
        temperature: a decay is a sigmoid to the power of 1 / temperature: the larger, the longer the memory.
        form: how it is computed, with the same result: "recurrent" passes a state from position to position, "chunked"
            from chunk to chunk, and "parallel" takes the sequence as one chunk. "auto" is "recurrent" for one position,
            "chunked" for more than `chunk_size`, and else "parallel", also in `torch.export` programs for any length.
        chunk_size: how many positions a chunk has; the last one may have fewer.
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
        self.check_positive("d_model", "num_heads", "head_dim", "value_head_dim", "output_dim", "rank", "chunk_size")
        self.check_number("temperature", above=0.0)
        self.check_number("norm_eps", above=0.0)
        self.check_one_of("form", FORMS)
        self.check_divisible("d_model", "num_heads", unless="head_dim")

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads
        return {
            "d": self.d_model,
            "h": self.num_heads,
            "k": k,
            "v": self.value_head_dim or k,
            "o": self.output_dim or self.d_model,
            "z": self.rank,
        }

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

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d"), "mask": Arg("b t", "mask", optional=True)}

    def cache_axes(self) -> dict[str, str]:
        return {"state": "b h k v"}

    def cache_slots(self) -> int | None:
        return 1


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2, output_dim=7, rank=5, form="parallel"),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, rank=2, temperature=0.5, form="recurrent", norm_eps=0.25),
    "chunked": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, rank=11, temperature=2.0, chunk_size=2),
}
