"""Qwen2-VL and Qwen2.5-VL as `transformers` names them: Qwen 2 whose positions count time, row and column.

These are the layers of the text model; those that see pictures are refused.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.llama import LAYOUT as LLAMA
from attn_np.weights.layouts.qwen2 import window_field


def text_model(hf: HFConfig, layer: int) -> HFConfig:
    """The fields of the text model, which has this layer."""
    hf.skip("vision_config", "video_token_id", "image_token_id", "vision_start_token_id", "vision_end_token_id")
    hf.skip("vision_token_id")
    text = hf.text_config()
    text.check_layer("num_hidden_layers", layer)
    return text


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen2VLConfig` or of the text model's in it, which older files lack."""
    text = text_model(hf, layer)
    fields = sizes(text, kv_heads=8) | {"qkv_bias": True} | window_field(text, layer, first=80)
    return "decoder", fields | whole_head_rotary(text, fields["head_dim"], **POSITIONS)


POSITIONS: dict[str, Any] = {"base": 1000000.0, "sections": (16, 24, 24), "max_positions": 32768}
TABLE = table(not_in_weights=("window", "rope_sections"), fixed={"qkv_bias": True})
LAYOUT = replace(
    family(
        "Qwen2VLModel",
        table_and_fields,
        {"decoder": TABLE},
        model_types=("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        elsewhere=("visual.*", "model.visual.*", "model.language_model.*"),
    ),
    prefixes=(*LLAMA.prefixes, "model.language_model.layers.{layer}."),
)
