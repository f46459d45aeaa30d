"""OLMo 2 as `transformers` names it: one norm over the queries of all heads and one over the keys of all."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `Olmo2Config`."""
    fields = fields_but_positions(hf)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


def fields_but_positions(hf: HFConfig, *, norm_eps: float = 1e-5) -> dict[str, Any]:
    """Our fields but for positions: the projections share one flag for their biases."""
    return sizes(hf) | biases(hf) | NORM | {"norm_eps": hf.number("rms_norm_eps", norm_eps)}


NORM = {"norm": "rms", "norm_over": "all", "norm_weight": "own"}
TABLE = table(
    rules={
        "w_q_norm_heads": ("self_attn.q_norm.weight", "(h k) -> h k"),
        "w_k_norm_heads": ("self_attn.k_norm.weight", "(g k) -> g k"),
    },
    flags=BIAS_FLAGS,
    not_in_weights=("norm_eps",),
    fixed=NORM,
)
IGNORED = ("post_feedforward_layernorm.weight",)
LAYOUT = family("Olmo2Model", table_and_fields, {"decoder": TABLE}, model_types=("olmo2",), ignored=IGNORED)
