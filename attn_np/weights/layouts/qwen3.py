"""Qwen 3 as `transformers` names it: queries and keys of each head are normed before they are rotated."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.qwen2 import window_field


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen3Config`: the projections share one flag for their biases."""
    fields, bias = sizes(hf, kv_heads=32, head_dim=128), hf.flag("attention_bias", False)
    fields |= {"qkv_bias": bias, "output_bias": bias, "norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-6)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | window_field(hf, layer)


TABLE = table(
    rules={"w_q_norm": ("self_attn.q_norm.weight", "k -> k"), "w_k_norm": ("self_attn.k_norm.weight", "k -> k")},
    flags=("qkv_bias", "output_bias"),
    not_in_weights=("window", "norm_eps"),
    fixed={"norm": "rms"},
)
LAYOUT = family("Qwen3Model", table_and_fields, {"decoder": TABLE}, model_types=("qwen3",))
