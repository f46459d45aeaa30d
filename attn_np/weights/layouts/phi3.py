"""Phi-3 and Phi-4 as `transformers` names them: one projection of queries, keys and values, and longrope factors."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Phi3Config`: heads may be rotated in part, and longrope is the only scaling."""
    hf.only("attention_bias", False)
    hf.only("full_attn_mod", 1)
    hf.only("interpolate_factor", 1)
    hf.skip("lm_head_bias", "original_max_position_embeddings")
    fields = sizes(hf)
    positions = rotary(hf, fields["head_dim"], original=4096)
    if positions.get("rope_scaling", "longrope") != "longrope":
        hf.refuse("rope_scaling", "none or 'longrope', as in these models", positions["rope_scaling"])
    return "decoder", fields | positions | sliding_window_field(hf)


QKV_PATTERN = "(h k | g k | g v) d -> d h k, d g k, d g v"
TABLE = table(rules={("w_q", "w_k", "w_v"): ("self_attn.qkv_proj.weight", QKV_PATTERN)}, not_in_weights=("window",))
LAYOUT = family("Phi3Model", table_and_fields, {"decoder": TABLE}, model_types=("phi3",))
