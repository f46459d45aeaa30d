"""OLMo 2 as `transformers` names it: one norm over the queries of all heads and one over the keys of all."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, full_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `Olmo2Config`: the projections share one flag for their biases."""
    fields, bias = sizes(hf), hf.flag("attention_bias", False)
    fields |= NORM | {"qkv_bias": bias, "output_bias": bias, "norm_eps": hf.number("rms_norm_eps", 1e-5)}
    return "decoder", fields | full_rotary(hf, fields["head_dim"])


NORM = {"norm": "rms", "norm_over": "all", "norm_weight": "own"}
TABLE = table(
    rules={
        "w_q_norm_heads": ("self_attn.q_norm.weight", "(h k) -> h k"),
        "w_k_norm_heads": ("self_attn.k_norm.weight", "(g k) -> g k"),
    },
    flags=("qkv_bias", "output_bias"),
    free=("norm_eps",),
    fixed=NORM,
)
IGNORED = ("post_feedforward_layernorm.weight",)
LAYOUT = family("Olmo2Model", table_and_fields, {"decoder": TABLE}, model_types=("olmo2",), ignored=IGNORED)
