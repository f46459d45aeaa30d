"""Gemma 4's text model as `transformers` names it: layers without a window have a width and positions of their own.

They may take their keys as values, and turn some of a head's pairs; the last layers may share keys, as Gemma 3n's do.
"""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, sliding_window_field
from attn_np.weights.layouts._hf_config import HFConfig, rotary
from attn_np.weights.layouts.gemma2 import IGNORED, kind
from attn_np.weights.layouts.gemma3n import AROUND, ELSEWHERE, common, shares, without
from attn_np.weights.layouts.gemma3n import TABLES as GEMMA_3N

OTHER_FIELDS = (
    "hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "top_k_experts",
    "use_double_wide_mlp", "final_logit_softcapping", "sliding_window", "global_head_dim",
    "num_global_key_value_heads",
)  # fmt: skip


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Gemma4TextConfig`, for text alone: tokens of one picture may see each other."""
    hf.only("use_bidirectional_attention", False, "vision")
    hf.skip(*OTHER_FIELDS)
    fields, layer_type, equal = sizes(hf, kv_heads=4, head_dim=256) | common(hf), kind(hf, layer, 6), False
    if layer == hf.integer("num_hidden_layers", 30) - 1:  # whatever the file says
        layer_type = "full_attention"
    if layer_type == "full_attention":
        equal = hf.flag("attention_k_eq_v", False)
        fields["head_dim"] = hf.integer("global_head_dim", 512)
        if equal and hf.get("num_global_key_value_heads") is not None:
            fields["num_kv_heads"] = hf.integer("num_global_key_value_heads")
    else:
        hf.skip("attention_k_eq_v")
        fields |= sliding_window_field(hf, 1024 if hf.model_type() == "gemma4_unified_text" else 512)
    # Later files have what differs between layers in one place.
    of_layers = hf.nested("per_layer_config")
    of_layers.skip_objects()
    if str(layer) in of_layers:
        own = of_layers.nested(str(layer))
        fields["head_dim"] = own.integer("head_dim", fields["head_dim"])
        fields["num_kv_heads"] = own.integer("num_key_value_heads", fields["num_kv_heads"])
    fields |= positions(hf, fields["head_dim"], layer_type)
    shared = shares(hf, layer, 30, 0)
    name = "decoder, shared" if shared else "decoder, keys as values" if equal else "decoder"
    return name, fields | dict(TABLES[name].fixed)


def positions(hf: HFConfig, head_dim: int, layer_type: str) -> dict[str, Any]:
    """Our fields of rotary positions: without a window a quarter of the pairs turn, if the file does not say more."""
    if "rope_parameters" in hf:
        return rotary(hf, head_dim, layer_type=layer_type, in_part=True)
    hf.skip("rope_parameters")
    if layer_type == "sliding_attention":
        return {"rope_base": 10000.0}
    return {"rope_base": 1000000.0, "rope_scaling": "proportional", "rotary_dim": 2 * int(0.25 * head_dim // 2)}


TABLES = GEMMA_3N | {"decoder, keys as values": without(GEMMA_3N["decoder"], "v", keys_as_values=True)}
LAYOUT = family(
    "Gemma4TextModel",
    table_and_fields,
    TABLES,
    model_types=("gemma4_text", "gemma4_unified_text"),
    ignored=(*IGNORED, *AROUND, "router.*", "experts.*", "layer_scalar", "*_feedforward_layernorm_*"),
    elsewhere=tuple(f"{at}{key}" for at in ("model.", "") for key in ELSEWHERE),
)
