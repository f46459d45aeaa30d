"""Granite with windows as `transformers` names it: a learned sink for each head, and layers that do not rotate."""

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
    """The table and fields of a `GraniteSWAConfig`: by default every fourth layer attends to all positions."""
    hf.skip("embedding_multiplier", "residual_multiplier", "logits_scaling", "shared_intermediate_size")
    fields: dict[str, Any] = sizes(hf, kv_heads=4) | biases(hf) | {"sinks": True}
    fields["scale"] = hf.number("attention_multiplier", 1.0)
    bases = hf.get("layer_rope_theta")
    if bases is not None and (not isinstance(bases, list) or len(bases) <= layer):
        hf.refuse("layer_rope_theta", f"a list of bases with one for layer {layer}")
    if is_sliding(hf, layer, lambda n: "sliding_attention" if n % 4 else "full_attention"):
        fields |= required_window_field(hf, layer, 128)
    hf.skip("sliding_window")
    if bases is not None and bases[layer] in (None, 0):
        return "decoder", fields | skip_rotary(hf)
    fields |= whole_head_rotary(hf, fields["head_dim"])
    return "decoder", fields | ({} if bases is None else {"rope_base": bases[layer]})


TABLE = table(
    rules={"sinks": ("self_attn.sinks", "h -> h")},
    flags=BIAS_FLAGS,
    not_in_weights=("scale", "window"),
    fixed={"sinks": True},
)
LAYOUT = family("GraniteSWAModel", table_and_fields, {"decoder": TABLE}, model_types=("granite_swa",))
