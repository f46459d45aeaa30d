"""ModernBERT's decoder as `transformers` names it: causal, with a projection for each of queries, keys and values."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, is_sliding, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.modernbert import LAYOUT as MODERNBERT
from attn_np.weights.layouts.modernbert import OTHER_FIELDS


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `ModernBertDecoderConfig`: a window is half of `local_attention`."""
    hf.skip(*OTHER_FIELDS)
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    every, window = hf.integer("global_attn_every_n_layers", 3), hf.integer("local_attention", 128) // 2
    window = hf.integer("sliding_window", window)
    local = is_sliding(hf, layer, lambda n: "sliding_attention" if n % every else "full_attention")
    fields = {"d_model": width, "num_heads": heads} | biases(hf) | ({"window": (window - 1, None)} if local else {})
    global_base, local_base = hf.number("global_rope_theta", 160000.0), hf.number("local_rope_theta", 10000.0)
    kind, base = ("sliding_attention", local_base) if local else ("full_attention", global_base)
    return "decoder", fields | whole_head_rotary(hf, width // heads, layer_type=kind, base=base)


LAYOUT = family(
    "ModernBertDecoderModel",
    table_and_fields,
    {
        "decoder": table(
            flags=BIAS_FLAGS, not_in_weights=("window",), names={"self_attn.o_proj": "attn.Wo", "self_attn": "attn"}
        )
    },
    model_types=("modernbert-decoder",),
    ignored=("attn_norm.*", "mlp_norm.*"),
    elsewhere=(*MODERNBERT.elsewhere, "lm_head.*"),
)
