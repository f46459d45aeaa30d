"""EuroBERT as `transformers` names it: Llama in both directions."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `EuroBertConfig`."""
    hf.skip("mask_token_id", "mask_token", "classifier_pooling", "bos_token", "eos_token", "pad_token", "clf_pooling")
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"causal": False}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


LAYOUT = family(
    "EuroBertModel",
    table_and_fields,
    {"decoder": table(flags=BIAS_FLAGS, fixed={"causal": False})},
    model_types=("eurobert",),
    elsewhere=("lm_head.*",),
)
