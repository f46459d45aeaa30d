"""RecurrentGemma as `transformers` names it: of its layers, those that attend, all within a window."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `RecurrentGemmaConfig`: half of each head is rotated, and the output has a bias."""
    hf.skip("lru_width", "conv1d_width", "logits_soft_cap", "w_init_variance_scale", "final_w_init_variance_scale")
    blocks = hf.get("block_types", ["recurrent", "recurrent", "attention"])
    kind = blocks[layer % len(blocks)] if isinstance(blocks, list) and blocks else None
    if kind != "attention":
        refuse = hf.refuse_layer if kind == "recurrent" else hf.refuse
        refuse("block_types", f"'attention' for layer {layer}, as recurrences are not read from this type", blocks)
    fields: dict[str, Any] = sizes(hf) | {"qkv_bias": hf.flag("attention_bias", False), "output_bias": True}
    hf.only("head_dim", fields["d_model"] // fields["num_heads"])
    fields["window"] = (hf.integer("attention_window_size", 2048) - 1, None)
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.5)


LAYOUT = family(
    "RecurrentGemmaModel",
    table_and_fields,
    {
        "decoder": table(
            flags=("qkv_bias",),
            not_in_weights=("window",),
            fixed={"output_bias": True},
            names={"self_attn": "temporal_block"},
        )
    },
    model_types=("recurrent_gemma",),
    ignored=("temporal_pre_norm.weight", "channel_pre_norm.weight", "mlp_block.*"),
    elsewhere=("model.final_norm.weight", "final_norm.weight"),
)
