"""OLMoE as `transformers` names it: OLMo 2's norms over all heads, and a limit of queries, keys and values."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts import olmo2
from attn_np.weights.layouts._decoder import clip_field, family
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `OlmoeConfig`, which are those of an `Olmo2Config` and the limit."""
    name, fields = olmo2.table_and_fields(hf, layer, part)
    return name, fields | clip_field(hf)


TABLE = replace(olmo2.TABLE, not_in_weights=(*olmo2.TABLE.not_in_weights, "clip_qkv"))
LAYOUT = family("OlmoeModel", table_and_fields, {"decoder": TABLE}, model_types=("olmoe",))
