"""Mistral as `transformers` names it: Llama without biases, and a window in every layer unless the file says null."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, window
from attn_np.weights.layouts._hf_config import HFConfig, full_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `MistralConfig`."""
    fields = sizes(hf, kv_heads=8)
    return "decoder", fields | full_rotary(hf, fields["head_dim"]) | window(hf, 4096)


LAYOUT = family("MistralModel", table_and_fields, {"decoder": table(free=("window",))}, model_types=("mistral",))
