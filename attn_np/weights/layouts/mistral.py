"""Mistral as `transformers` names it: Llama without biases, and a window in every layer unless the file says null."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `MistralConfig`."""
    fields = sizes(hf, kv_heads=8)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | sliding_window_field(hf, 4096)


LAYOUT = family(
    "MistralModel", table_and_fields, {"decoder": table(not_in_weights=("window",))}, model_types=("mistral",)
)
