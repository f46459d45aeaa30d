"""Qwen 2 and 2.5 as `transformers` names them: biases on queries, keys and values, and a window in some layers."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen2Config`."""
    fields = sizes(hf, kv_heads=32)
    return "decoder", fields | {"qkv_bias": True} | whole_head_rotary(hf, fields["head_dim"]) | window_field(hf, layer)


def window_field(hf: HFConfig, layer: int, first: int = 28) -> dict[str, Any]:
    """Our field for a layer's window: by default, if windows are used, the layers from `max_window_layers` have one."""
    first, used = hf.integer("max_window_layers", first), hf.flag("use_sliding_window", False)
    fields = sliding_window_field(hf, 4096) if used else {}
    hf.skip("sliding_window")

    def default(n: int) -> str:
        return "sliding_attention" if fields and n >= first else "full_attention"

    kind = hf.layer_type(layer, default, "sliding_attention", "full_attention")
    if kind == "full_attention":
        return {}
    return fields or hf.refuse("sliding_window", f"a window for layer {layer}, with use_sliding_window", None)


TABLE = table(not_in_weights=("window",), fixed={"qkv_bias": True})
LAYOUT = family("Qwen2Model", table_and_fields, {"decoder": TABLE}, model_types=("qwen2",))
