"""Granite as `transformers` names it: Llama whose factor on the scores is a field."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GraniteConfig`: without the field for it, scores are not scaled."""
    hf.skip("embedding_multiplier", "residual_multiplier", "logits_scaling")
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"scale": hf.number("attention_multiplier", 1.0)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


LAYOUT = family(
    "GraniteModel",
    table_and_fields,
    {"decoder": table(flags=BIAS_FLAGS, not_in_weights=("scale",))},
    model_types=("granite",),
)
