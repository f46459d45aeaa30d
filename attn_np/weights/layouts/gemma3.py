"""Gemma 3's text model as `transformers` names it: normed queries and keys, and a smaller rotary base in windows."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, family, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary_of_layer_type, whole_head_rotary
from attn_np.weights.layouts.gemma2 import IGNORED, common, kind
from attn_np.weights.layouts.qwen3 import TABLE as NORMED


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Gemma3TextConfig`: norm weights are stored minus 1."""
    hf.only("use_bidirectional_attention", False)
    if "attn_logit_softcapping" in hf:
        hf.refuse("attn_logit_softcapping", "none, as this family ignores the field")
    fields = common(hf, None) | {"norm": "rms", "norm_offset": 1.0, "norm_eps": hf.number("rms_norm_eps", 1e-6)}
    # The library writes the pattern of the layers' types under a second name, too.
    hf.skip("_sliding_window_pattern")
    layer_type = kind(hf, layer, hf.integer("sliding_window_pattern", 6))
    fields |= positions(hf, fields["head_dim"], layer_type)
    return "decoder", fields | (sliding_window_field(hf, 4096) if layer_type == "sliding_attention" else {})


def positions(hf: HFConfig, head_dim: int, layer_type: str) -> dict[str, Any]:
    """Our fields of rotary positions: older files name the base of windows apart, and scale the other layers alone."""
    if "rope_parameters" in hf:
        hf.skip("rope_local_base_freq")
        return rotary_of_layer_type(hf, head_dim, layer_type)
    if layer_type == "sliding_attention":
        hf.skip("rope_theta", "rope_scaling")
        return {"rope_base": hf.number("rope_local_base_freq", 10000.0)}
    hf.skip("rope_local_base_freq")
    return whole_head_rotary(hf, head_dim, base=1000000.0)


TABLE = table(
    rules={names: NORMED.rules[names] for names in ("w_q_norm", "w_k_norm")},
    flags=BIAS_FLAGS,
    not_in_weights=("scale", "window", "norm_eps"),
    fixed={"norm": "rms", "norm_offset": 1.0},
)
LAYOUT = family("Gemma3TextModel", table_and_fields, {"decoder": TABLE}, model_types=("gemma3_text",), ignored=IGNORED)
