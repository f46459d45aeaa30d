"""GPT-NeoX as `transformers` names it: one matrix, its rows of query, key and value interleaved by head."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPTNeoXConfig`: by default a quarter of each head is rotated."""
    hf.skip("use_parallel_residual", "is_decoder")
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    bias = hf.flag("attention_bias", True)
    base, share = hf.number("rotary_emb_base", 10000.0), hf.number("rotary_pct", 0.25)
    return "decoder", {
        "d_model": width,
        "num_heads": heads,
        "qkv_bias": bias,
        "output_bias": bias,
        **rotary(hf, width // heads, base=base, share=share),
    }


LAYOUT = Layout(
    origin="transformers: GPTNeoXModel and the models that keep its names",
    prefixes=("gpt_neox.layers.{layer}.", "layers.{layer}."),
    tables={
        "decoder": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("attention.query_key_value.weight", "(h p k) d -> p d h k"),
                ("b_q", "b_k", "b_v"): ("attention.query_key_value.bias", "(h p k) -> p h k"),
                "w_o": ("attention.dense.weight", "o (h v) -> h v o"),
                "b_o": ("attention.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            flags={"qkv_bias": ("b_q", "b_k", "b_v"), "output_bias": ("b_o",)},
            not_in_weights=ROTARY_FIELDS,
        )
    },
    ignored=(
        "attention.bias",  # the causal mask
        "attention.masked_bias",  # minus infinity
        "attention.rotary_emb.inv_freq",  # follows from the config
        "input_layernorm.*",
        "post_attention_layernorm.*",
        "mlp.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "gpt_neox.") for key in ("embed_in.weight", "final_layer_norm.*")),
        "gpt_neox.layers.*",
        "layers.*",
        "embed_out.weight",
        "score.weight",
        "classifier.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("gpt_neox",),
    table_and_fields=table_and_fields,
)
