"""Attention with rotary positions: queries and keys rotate with their positions, so scores depend on the distance."""

from dataclasses import dataclass

from attn_np.contract._heads import Heads
from attn_np.contract._rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class Config(Rotary, Heads):
    """Fields of attention with rotary positions.

    Attributes:
        causal: a position sees itself and earlier ones.
        window: (left, right), how many positions before and after its own a query sees; None is no limit.
        rope_base: pair i rotates by rope_base^(-2i / rotary_dim) per position.
        rope_layout: "half", a pair is one dimension of the first half and one of the second (Llama, GPT-NeoX), or
            "interleaved", two neighbours (the paper, GPT-J).
        rope_scaling: how angles change beyond the lengths in training: None, "linear", "dynamic", "yarn", "llama3"
            or "longrope". "dynamic" and "longrope" depend on the length: that of a full pass, `max_length` of a cache
            when decoding, so that all keys in it agree, and the largest position + 1 if a full pass is given positions.
    """

    class_name = "RotaryAttention"
    family = "positions"
    title = "Rotary position embedding"
    idea = (
        "Each pair of dimensions of a query or key is a point in a plane. Rotate it by an angle that grows with the "
        "position, and the product of a query and a key depends only on how far apart they are."
    )
    formula = (
        r"R_m = \mathrm{diag}\left(e^{\mathrm{i} m \theta_0}, e^{\mathrm{i} m \theta_1}, \ldots\right), \quad "
        r"\theta_i = \mathrm{base}^{-2i/r}, \qquad \mathrm{Re}\left[(R_m q_m)^{\ast} (R_n k_n)\right] = "
        r"\mathrm{Re}\left[q_m^{\ast} R_{n-m}\, k_n\right]"
    )
    notation = {
        "a pair of dimensions (a, b)": "one complex number a + i b; the star is the conjugate transpose",
        "d": "r = rotary_dim: each head is rotated by itself",
        "theta_i, i = 1 .. d/2": "frequencies, i = 0 .. r/2 - 1",
        "R_Theta,m q, R_Theta,n k": "q_rot, k_rot",
        "W_q, W_k": "w_q, w_k",
    }
    cost = "time b t t h (k + v), and b t h k for the rotation; memory b h t t on the textbook path"
    paper = "Su et al. 2021, RoFormer, arXiv:2104.09864, section 3.2.2, equations 14, 15 and 34"
    equals = (
        "all positions the same: mha",
        "either layout with columns of w_q and w_k in the other's order: attn_np.weights.rotary_layout moves them",
    )
    traps = (
        "weights for layout 'half' run with 'interleaved', or the other way round: shapes fit, the model babbles; "
        "attn_np.weights.rotary_layout moves the columns",
        "angles in float32 or bfloat16 are wrong at large positions: by 1e-3 at 100 000; tables are made in float64",
        "a cache of keys before their rotation, rotated later by their place in it; keys are rotated before they are "
        "cached",
        "partial rotary: exponents divide by rotary_dim (GPT-J, GPT-NeoX, Phi), not by the head's width",
        "with left padding positions start at the first real token, not at the first column",
        "'dynamic' and 'longrope' change all angles with the length: keys cached for one length do not fit another",
        "positions on several axes: rope_sections deals out the frequencies of one head (M-RoPE), rope_axes gives each "
        "axis its own (pictures)",
        "the values are not rotated",
    )

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    use_bias: bool = True
    rope_base: float = 10000.0
    rotary_dim: int | None = None
    rope_layout: str = "half"
    rope_sections: tuple[int, ...] | None = None
    rope_axes: tuple[int, ...] | None = None
    max_positions: int | None = None
    rope_scaling: str | None = None
    rope_scaling_factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    yarn_truncate: bool = True
    attention_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("softcap", above=0.0)
        self.check_window("window")
        self.check_flag("causal")
        self.check_rotary()

    def sizes(self) -> dict[str, int]:
        return super().sizes() | self.position_sizes()

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s h k", "v": "b s h v"} if self.causal else {}

    def broken_relations(self) -> dict[str, str]:
        return {"keys_have_no_order": "scores depend on the distance of queries and keys"}


EXAMPLES = {
    "yarn": Config(
        d_model=7,
        num_heads=2,
        head_dim=6,
        value_head_dim=3,
        output_dim=5,
        causal=True,
        use_bias=False,
        rope_scaling="yarn",
        rope_scaling_factor=4.0,
        original_max_positions=29,
        beta_fast=2.5,
        beta_slow=0.25,
        yarn_truncate=False,
    ),
    "interleaved": Config(
        d_model=5,
        num_heads=3,
        head_dim=7,
        value_head_dim=11,
        scale=0.5,
        softcap=2.5,
        dropout=0.25,
        rope_base=50.0,
        rotary_dim=6,
        rope_layout="interleaved",
        rope_sections=(1, 2),
        max_positions=13,
        rope_scaling="llama3",
        rope_scaling_factor=3.0,
        original_max_positions=23,
        low_freq_factor=0.5,
        high_freq_factor=2.0,
    ),
    "longrope": Config(
        d_model=7,
        num_heads=3,
        head_dim=5,
        causal=True,
        window=(3, 1),
        rotary_dim=4,
        max_positions=13,
        rope_scaling="longrope",
        original_max_positions=1,
        attention_factor=1.25,
        short_factor=(1.0, 1.5),
        long_factor=(1.25, 3.0),
    ),
    "axes": Config(
        d_model=7,
        num_heads=3,
        head_dim=10,
        value_head_dim=5,
        use_bias=False,
        rope_base=50.0,
        rope_axes=(6, 4),
        max_positions=13,
    ),
}
