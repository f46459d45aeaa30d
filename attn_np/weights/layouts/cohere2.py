"""Cohere's Command R7B and A as `transformers` names them: layers with a window rotate, the others do not."""

from typing import Any

from attn_np.weights.layouts._decoder import (
    BIAS_FLAGS,
    biases,
    family,
    is_sliding,
    required_window_field,
    sizes,
    skip_rotary,
    table,
)
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Cohere2Config`: by default every fourth layer attends to all positions."""
    every = hf.integer("sliding_window_pattern", 4)
    # What the published files say of the same things, and of the model around attention.
    for name, value in (("layer_switch", every), ("rotary_pct", 1.0), ("use_qk_norm", False)):
        hf.only(name, value)
    hf.only("order_of_interleaved_layers", "local_attn_first")
    hf.only("position_embedding_type", "rope_gptj")
    hf.skip("logit_scale", "cache_implementation", "_sliding_window_pattern", "use_embedding_sharing")
    hf.skip("use_gated_activation", "use_parallel_block", "use_parallel_embedding")
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"rope_layout": "interleaved"}
    hf.only("head_dim", fields["d_model"] // fields["num_heads"])
    if is_sliding(hf, layer, lambda n: "sliding_attention" if (n + 1) % every else "full_attention"):
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | required_window_field(hf, layer, 4096)
    hf.skip("sliding_window")
    return "decoder", fields | skip_rotary(hf)


TABLE = table(flags=BIAS_FLAGS, not_in_weights=("window",), fixed={"rope_layout": "interleaved"})
LAYOUT = family("Cohere2Model", table_and_fields, {"decoder": TABLE}, model_types=("cohere2",))
