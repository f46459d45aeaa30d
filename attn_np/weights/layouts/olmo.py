"""OLMo as `transformers` names it: Llama's tensors, and a limit of queries, keys and values."""

from typing import Any

from attn_np.weights.layouts._decoder import BIASES, biases, clip, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, full_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `OlmoConfig`: the projections share one flag for their biases."""
    fields = sizes(hf) | biases(hf) | clip(hf)
    return "decoder", fields | full_rotary(hf, fields["head_dim"])


TABLE = table(flags=BIASES, free=("clip_qkv",))
LAYOUT = family("OlmoModel", table_and_fields, {"decoder": TABLE}, model_types=("olmo",))
