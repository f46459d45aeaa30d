"""gpt-oss as `transformers` names it: a learned sink for each head, biases, and a window in every other layer."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.gemma2 import kind


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GptOssConfig`: the projections share one flag for their biases, True by default."""
    fields, bias = sizes(hf, kv_heads=8, head_dim=64), hf.flag("attention_bias", True)
    fields |= {"qkv_bias": bias, "output_bias": bias, "sinks": True}
    if "rope_parameters" not in hf and "rope_scaling" not in hf:
        hf.refuse("rope_parameters", "how positions are scaled")
    hf.skip(
        "num_local_experts", "num_experts", "num_experts_per_tok", "experts_per_token", "output_router_logits",
        "router_aux_loss_coef", "swiglu_alpha", "swiglu_limit", "initial_context_length", "sliding_window",
    )  # fmt: skip
    require_float_attention(hf)
    fields |= whole_head_rotary(hf, fields["head_dim"], base=150000.0)
    return "decoder", fields | (sliding_window_field(hf, 128) if kind(hf, layer, 2) == "sliding_attention" else {})


def require_float_attention(hf: HFConfig) -> None:
    """Refuse a quantised model, unless its file says that the weights of attention are not quantised."""
    quantization = hf.get("quantization_config")
    exempt = quantization.get("modules_to_not_convert") if isinstance(quantization, dict) else None
    if quantization is not None and not (isinstance(exempt, list) and "model.layers.*.self_attn" in exempt):
        hf.refuse("quantization_config", "'model.layers.*.self_attn' in its modules_to_not_convert")


TABLE = table(
    rules={"sinks": ("self_attn.sinks", "h -> h")},
    flags=("qkv_bias", "output_bias"),
    not_in_weights=("window",),
    fixed={"sinks": True},
)
LAYOUT = family("GptOssModel", table_and_fields, {"decoder": TABLE}, model_types=("gpt_oss",))
