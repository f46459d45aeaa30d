"""OLMo as `transformers` names it: Llama's tensors, and a limit of queries, keys and values."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, clip_field, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `OlmoConfig`: the projections share one flag for their biases."""
    fields = sizes(hf) | biases(hf) | clip_field(hf)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


TABLE = table(flags=BIAS_FLAGS, not_in_weights=("clip_qkv",))
LAYOUT = family("OlmoModel", table_and_fields, {"decoder": TABLE}, model_types=("olmo",))
