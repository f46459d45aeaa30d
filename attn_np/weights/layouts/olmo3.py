"""OLMo 3 as `transformers` names it: OLMo 2's norms, and a window in three of four layers."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts import olmo2
from attn_np.weights.layouts._decoder import family, is_sliding, required_window_field
from attn_np.weights.layouts._hf_config import HFConfig, rotary_of_layer_type, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `Olmo3Config`: by default every fourth layer attends to all positions."""
    fields = olmo2.fields_but_positions(hf)
    local = is_sliding(hf, layer, lambda n: "sliding_attention" if (n + 1) % 4 else "full_attention")
    fields |= positions(hf, fields["head_dim"], "sliding_attention" if local else "full_attention")
    hf.skip("sliding_window")
    return "decoder", fields | (required_window_field(hf, layer, 4096) if local else {})


def positions(hf: HFConfig, head_dim: int, layer_type: str) -> dict[str, Any]:
    """Our fields of rotary positions: older files have one base, and scale the layers without a window alone."""
    if "rope_parameters" in hf:
        return rotary_of_layer_type(hf, head_dim, layer_type)
    if layer_type == "full_attention":
        return whole_head_rotary(hf, head_dim, base=500000.0)
    hf.skip("rope_scaling")
    return {"rope_base": hf.number("rope_theta", 500000.0)}


TABLE = replace(olmo2.TABLE, not_in_weights=(*olmo2.TABLE.not_in_weights, "window"))
LAYOUT = family("Olmo3Model", table_and_fields, {"decoder": TABLE}, model_types=("olmo3",), ignored=olmo2.IGNORED)
