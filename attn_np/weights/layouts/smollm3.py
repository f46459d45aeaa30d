"""SmolLM 3 as `transformers` names it: by default every fourth layer does not rotate queries and keys."""

from typing import Any

from attn_np.weights.layouts._decoder import (
    BIAS_FLAGS,
    biases,
    family,
    is_sliding,
    required_window_field,
    sizes,
    skip_rotary,
    table,
)
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `SmolLM3Config`; with windows, the layers without rotation have one by default."""
    fields, rotates = sizes(hf, kv_heads=4) | biases(hf), layer_rotates(hf, layer)
    fields |= whole_head_rotary(hf, fields["head_dim"], base=2000000.0) if rotates else skip_rotary(hf)
    windows = hf.flag("use_sliding_window", False) and "sliding_window" in hf
    hf.skip("sliding_window")
    if is_sliding(hf, layer, lambda _: "sliding_attention" if windows and not rotates else "full_attention"):
        if not windows:
            hf.refuse("use_sliding_window", f"true and sliding_window, for layer {layer}", windows)
        fields |= required_window_field(hf, layer)
    return "decoder", fields


def layer_rotates(hf: HFConfig, layer: int) -> bool:
    """Whether a layer rotates: its entry in `no_rope_layers` is 1, in spite of the name."""
    every, entries = hf.integer("no_rope_layer_interval", 4), hf.get("no_rope_layers", [])
    if not isinstance(entries, list) or (entries and (layer >= len(entries) or entries[layer] not in (0, 1))):
        hf.refuse("no_rope_layers", f"a list of 0 and 1 with an entry for layer {layer}")
    return bool(entries[layer]) if entries else (layer + 1) % every != 0


TABLE = table(flags=BIAS_FLAGS, not_in_weights=("window",))
LAYOUT = family("SmolLM3Model", table_and_fields, {"decoder": TABLE}, model_types=("smollm3",))
