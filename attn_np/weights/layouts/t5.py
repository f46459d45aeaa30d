"""T5 as `transformers` names it: block 0 of the encoder and of the decoder has the table of distances for all blocks.

Cross-attention has no position bias, and the scale is 1.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig

PART_PREFIXES = {
    "encoder": "encoder.block.{layer}.layer.0.",
    "decoder": "decoder.block.{layer}.layer.0.",
    "cross": "decoder.block.{layer}.layer.1.",
}


STACK_PATTERNS = tuple(
    f"{stack}.{key}"
    for stack in ("encoder", "decoder")
    for key in ("block.*", "embed_tokens.weight", "final_layer_norm.weight")
)


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `T5Config`."""
    in_decoder = part != "encoder" and "num_decoder_layers" in hf
    hf.check_layer("num_decoder_layers" if in_decoder else "num_layers", layer)
    hf.skip("num_layers", "num_decoder_layers", "n_positions", "output_past", "is_decoder")
    hf.skip("d_ff", "feed_forward_proj", "dense_act_fn", "is_gated_act", "dropout_rate", "scale_decoder_outputs")
    width, heads = hf.integer("d_model"), hf.integer("num_heads")
    sizes = {"d_model": width, "num_heads": heads, "head_dim": hf.integer("d_kv")}
    buckets = hf.integer("relative_attention_num_buckets", 32)
    max_distance = hf.integer("relative_attention_max_distance", 128)
    if part == "cross":
        return "mha", sizes | {"use_bias": False, "scale": 1.0}
    return "t5_bias", sizes | {"causal": part == "decoder", "num_buckets": buckets, "max_distance": max_distance}


LAYOUT = Layout(
    origin="transformers: T5Model and the models that keep its names",
    prefixes={part: (start, f"transformer.{start}") for part, start in PART_PREFIXES.items()},
    tables={
        "t5_bias": Table(
            rules={
                "w_q": ("SelfAttention.q.weight", "(h k) d -> d h k"),
                "w_k": ("SelfAttention.k.weight", "(h k) i -> i h k"),
                "w_v": ("SelfAttention.v.weight", "(h v) j -> j h v"),
                "w_o": ("SelfAttention.o.weight", "o (h v) -> h v o"),
                "w_bias": ("SelfAttention.relative_attention_bias.weight", "x h -> x h"),
            },
            letters={"d_model": "d", "num_heads": "h", "head_dim": "k", "num_buckets": "x"},
            not_in_weights=("causal", "max_distance"),
            first_layer_keys=("SelfAttention.relative_attention_bias.weight",),
        ),
        "mha": Table(
            rules={
                "w_q": ("EncDecAttention.q.weight", "(h k) d -> d h k"),
                "w_k": ("EncDecAttention.k.weight", "(h k) i -> i h k"),
                "w_v": ("EncDecAttention.v.weight", "(h v) j -> j h v"),
                "w_o": ("EncDecAttention.o.weight", "o (h v) -> h v o"),
            },
            letters={"d_model": "d", "num_heads": "h", "head_dim": "k"},
            fixed={"use_bias": False, "scale": 1.0},
        ),
    },
    ignored=(
        "layer_norm.weight",
        "EncDecAttention.relative_attention_bias.weight",  # in the first files; no model uses it
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "transformer.") for key in ("shared.weight", *STACK_PATTERNS)),
        "lm_head.weight",
        "classifier.*",
        "classification_head.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("t5", "mt5"),
    table_and_fields=table_and_fields,
)
