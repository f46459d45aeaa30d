"""The text models of GLM-4.1V and GLM-OCR as `transformers` names them: interleaved pairs whose positions count time,
row and column.
"""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Glm4vTextConfig`."""
    fields: dict[str, Any] = sizes(hf, kv_heads=2) | {"qkv_bias": hf.flag("attention_bias", True)}
    fields |= {"rope_layout": "interleaved"} | rotary(hf, fields["head_dim"], sections=SECTIONS, max_positions=32768)
    return "decoder", fields


SECTIONS = (8, 12, 12)
TABLE = table(flags=("qkv_bias",), fixed={"rope_layout": "interleaved"}, not_in_weights=("rope_sections",))
LAYOUT = family(
    "Glm4vTextModel",
    table_and_fields,
    {"decoder": TABLE},
    model_types=("glm4v_text",),
    ignored=("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"),
)
