"""Gemma 2 as `transformers` names it: capped scores, a scale of its own, and a window in every other layer."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Gemma2Config`: the projections share one flag for their biases."""
    hf.only("use_bidirectional_attention", False)
    fields = common(hf, 50.0) | whole_head_rotary(hf, hf.integer("head_dim", 256))
    # The first files have the same window under two names.
    hf.only("sliding_window_size", hf.get("sliding_window"))
    return "decoder", fields | (sliding_window_field(hf, 4096) if kind(hf, layer, 2) == "sliding_attention" else {})


def common(hf: HFConfig, cap: float | None) -> dict[str, Any]:
    """Our fields that Gemma 2 and 3 have in common.

    Args:
        hf: the model's fields.
        cap: the family's default for the softcap.
    """
    bias = hf.flag("attention_bias", False)
    fields = sizes(hf, kv_heads=4, head_dim=256) | {"qkv_bias": bias, "output_bias": bias}
    fields["scale"] = hf.number("query_pre_attn_scalar", 256) ** -0.5
    hf.skip("final_logit_softcapping", "cache_implementation", "sliding_window")
    capped = not hf.is_null("attn_logit_softcapping") and ("attn_logit_softcapping" in hf or cap is not None)
    return fields | ({"softcap": hf.number("attn_logit_softcapping", cap)} if capped else {})


def kind(hf: HFConfig, layer: int, every: int) -> str:
    """The type of a layer; if the file has no types, every `every`-th layer attends to all positions."""

    def default(n: int) -> str:
        return "sliding_attention" if (n + 1) % every else "full_attention"

    return hf.layer_type(layer, default, "sliding_attention", "full_attention")


TABLE = table(flags=BIAS_FLAGS, not_in_weights=("scale", "softcap", "window"))
IGNORED = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
LAYOUT = family("Gemma2Model", table_and_fields, {"decoder": TABLE}, model_types=("gemma2",), ignored=IGNORED)
