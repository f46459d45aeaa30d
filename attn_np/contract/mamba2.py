"""Mamba-2: a state that each position lets fade and writes to, between a short convolution and a gate."""

from dataclasses import dataclass

from attn_np.contract._base import Param
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads
from attn_np.contract.gated_delta import log_rates, step_biases


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of Mamba-2.

    Attributes:
        num_key_heads: how many heads of queries and keys there are, the groups of the paper; 1 by default. Each serves
            num_heads / num_key_heads neighbouring heads.
        state_dim: width of queries and keys, rows of a state.
        head_dim: width of a head's values, columns of a state.
        conv_size: how many positions, the current one last, a convolution spans; it acts on each dimension of queries,
            keys and values, before SiLU; 4 in published models. None: no convolution, and SiLU all the same.
        conv_bias: the convolutions add a bias.
        use_norm: an RMS norm after the gate.
        norm_groups: in how many groups of neighbouring heads the norm divides them; 1 is one norm over all.
        norm_eps: added under the root of the norm.
    """

    class_name = "Mamba2"
    family = "linear"
    title = "Mamba-2"
    idea = (
        "A state space model whose state fades by one number for each head and position is attention without a "
        "softmax: the input matrix is a key, the output matrix a query. The size of a position's step decides both "
        "how much of the state fades and how much is written."
    )
    formula = (
        r"s_t = e^{-\Delta_t e^{a}} s_{t-1} + \Delta_t\, k_t v_t^\top,\quad c_t = s_t^\top q_t + D\, v_t,\quad "
        r"\Delta_t = \mathrm{softplus}(x_t w_{dt} + b_{dt}),\quad "
        r"y = \mathrm{rms}\!\left(c \odot \mathrm{silu}(x w_{gate})\right) w_o"
    )
    notation = {
        "x, B, C of the paper, after convolution and SiLU": "v_silu, k_silu, q_silu on the tape",
        "z": "gate_scores",
        "A, Delta": "-exp(a_log), step",
        "D": "skip",
        "in_proj of the authors' code": "w_gate, w_v, w_k, w_q and w_dt, in this order",
        "conv1d": "w_v_conv, w_k_conv, w_q_conv and their biases, in this order",
        "n_groups, d_state, headdim, d_inner": "num_key_heads, state_dim, head_dim, num_heads * head_dim",
    }
    cost = (
        "time b t h k v, plus b t c h (k + v + c) within chunks of c, plus b t x (2 g k + h v) for convolutions; the "
        "state is b h k v"
    )
    paper = (
        "Dao, Gu 2024, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State "
        "Space Duality, arXiv:2405.21060, sections 2.1, 6 and 7; the norm in groups as in the authors' code for "
        "several groups"
    )
    equals = ("the three forms: each other", "without convolution, skip, gate and norm: recur with rule='gated'")
    traps = (
        "the step multiplies the decay's exponent and the value: one of them alone is another model",
        "queries are not scaled by 1/sqrt(K)",
        "the gate comes before the norm, where gated linear attention norms first",
        "a norm over all heads and one in groups have the same weights and other results",
        "D is one number for each head and multiplies the value after SiLU",
        "the convolution looks back: the last of its weights is that of the current position",
        "padding must neither fade the state nor write; the bias of the convolution is there at padding, too",
    )

    not_in_results = ("form", "chunk_size")
    projects = {"w_dt": "dt_bias", "w_q_conv": False, "w_k_conv": False, "w_v_conv": False}

    d_model: int
    num_heads: int
    num_key_heads: int = 1
    state_dim: int = 128
    head_dim: int = 64
    output_dim: int | None = None
    form: str = "auto"
    chunk_size: int = 64
    conv_size: int | None = None
    conv_bias: bool = True
    use_norm: bool = True
    norm_groups: int = 1
    norm_eps: float = 0.00001

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_key_heads", "state_dim", "conv_size", "norm_groups")
        self.check_flag("conv_bias", "use_norm")
        self.check_number("norm_eps", above=0.0)
        for name in ("num_key_heads", "norm_groups"):
            got = f"num_heads={self.num_heads}, {name}={getattr(self, name)}"
            fits = self.num_heads % getattr(self, name) == 0
            self.require(fits, f"num_heads divisible by {name}", got, "change one of them")

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes() | {"g": self.num_key_heads, "k": self.state_dim}
        return sizes if self.conv_size is None else sizes | {"x": self.conv_size}

    def own_params(self) -> dict[str, Param]:
        axes = {"q": "g k", "k": "g k", "v": "h v"}
        params = {f"w_{name}": Param(f"d {of}", "d") for name, of in axes.items()}
        if self.conv_size is not None:
            params |= {f"w_{name}_conv": Param(f"x {of}", "x") for name, of in axes.items()}
            params |= {f"b_{name}_conv": Param(of, "x") for name, of in axes.items()} if self.conv_bias else {}
        params |= {
            "w_gate": Param("d h v", "d"),
            "w_dt": Param("d h", "d"),
            "dt_bias": Param("h", "", init=lambda: step_biases(self.num_heads)),
            "a_log": Param("h", "", init=lambda: log_rates(self.num_heads)),
            "skip": Param("h", "", init=1.0),
            "w_o": Param("h v o", "h v"),
        }
        return params | ({"w_norm": Param("h v", "", init=1.0)} if self.use_norm else {})

    def broken_relations(self) -> dict[str, str]:
        if not self.use_norm or self.norm_groups == self.num_heads:
            return super().broken_relations()
        return super().broken_relations() | {"heads_stand_alone": "the norm divides several heads by one number"}

    def meaning(self) -> dict[str, object]:
        idle = () if self.use_norm else ("norm_groups", "norm_eps")
        idle += () if self.conv_size is not None else ("conv_bias",)
        return {name: value for name, value in super().meaning().items() if name not in idle}

    def cache_axes(self) -> dict[str, str]:
        windows = {"q_conv": "b x g k", "k_conv": "b x g k", "v_conv": "b x h v"}
        return super().cache_axes() | ({} if self.conv_size is None else windows)


EXAMPLES = {
    "whole": Config(
        d_model=5, num_heads=2, state_dim=3, head_dim=7, output_dim=11, form="parallel", use_norm=False
    ),
    "recurrent": Config(
        d_model=7, num_heads=6, num_key_heads=2, state_dim=5, head_dim=3, form="recurrent", conv_size=2, norm_groups=3,
        norm_eps=0.25,
    ),
    "chunked": Config(d_model=6, num_heads=3, state_dim=2, head_dim=5, chunk_size=2, conv_size=3, conv_bias=False),
}  # fmt: skip
