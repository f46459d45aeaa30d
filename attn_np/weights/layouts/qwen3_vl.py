"""Qwen3-VL as `transformers` names it: Qwen 3 whose positions count time, row and column, with pairs dealt in turn.

These are the layers of the text model; those that see pictures are refused.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts import qwen2_vl
from attn_np.weights.layouts._decoder import biases, sizes
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.qwen3 import TABLE as NORMED


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen3VLConfig` or of the text model's in it."""
    text = qwen2_vl.text_model(hf, layer)
    fields = sizes(text, kv_heads=32, head_dim=128) | biases(text)
    fields |= {"norm": "rms", "norm_eps": text.number("rms_norm_eps", 1e-6)}
    return "decoder", fields | whole_head_rotary(text, fields["head_dim"], **POSITIONS)


POSITIONS: dict[str, Any] = {"base": 500000.0, "sections": (24, 20, 20), "interleaved": True, "max_positions": 128000}
TABLE = replace(
    NORMED,
    not_in_weights=(*(name for name in NORMED.not_in_weights if name != "window"), "rope_sections"),
    fixed={**NORMED.fixed, "rope_sections_interleaved": True},
)
LAYOUT = replace(
    qwen2_vl.LAYOUT,
    origin="transformers: Qwen3VLModel and the models that keep its names",
    tables={"decoder": TABLE},
    model_types=("qwen3_vl", "qwen3_vl_text"),
    table_and_fields=table_and_fields,
)
