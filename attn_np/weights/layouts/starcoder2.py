"""StarCoder 2 as `transformers` names it: one flag for the biases of all projections, and a window in every layer."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, NORM_BIAS_KEYS, family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Starcoder2Config`; without `sliding_window`, no layer has a window."""
    hf.only("scale_attn_weights", True)
    # The rest of the layer, and fields of the published files that the library does not read.
    hf.skip("norm_epsilon", "norm_type", "residual_dropout", "embedding_dropout", "activation_function", "mlp_type")
    hf.skip("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    fields = sizes(hf, kv_heads=2) | dict.fromkeys(BIAS_FLAGS, hf.flag("use_bias", True))
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | sliding_window_field(hf)


LAYOUT = family(
    "Starcoder2Model",
    table_and_fields,
    {"decoder": table(flags=BIAS_FLAGS, not_in_weights=("window",))},
    model_types=("starcoder2",),
    ignored=NORM_BIAS_KEYS,
    elsewhere=("model.norm.bias", "norm.bias"),
)
