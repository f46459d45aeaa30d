"""GPT-NeoX Japanese as `transformers` names it: GPT-NeoX with no bias but that of the last layer's output."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, rotary
from attn_np.weights.layouts.gpt_neox import LAYOUT as GPT_NEOX


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPTNeoXJapaneseConfig`."""
    hf.skip("intermediate_multiple_size", "is_decoder")
    width, heads, layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.integer("num_hidden_layers")
    base, share = hf.number("rotary_emb_base", 10000.0), hf.number("rotary_pct", 1.0)
    fields = {"d_model": width, "num_heads": heads, "output_bias": layer == layers - 1}
    return "decoder", fields | rotary(hf, width // heads, base=base, share=share)


LAYOUT = replace(
    GPT_NEOX,
    origin="transformers: GPTNeoXJapaneseModel",
    prefixes=("gpt_neox_japanese.layers.{layer}.", "layers.{layer}."),
    tables={
        "decoder": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("attention.query_key_value.weight", "(h p k) d -> p d h k"),
                "w_o": ("attention.dense.weight", "o (h v) -> h v o"),
                "b_o": ("attention.dense_bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            flags={"output_bias": ("b_o",)},
            not_in_weights=ROTARY_FIELDS,
        )
    },
    elsewhere=(*GPT_NEOX.elsewhere, "gpt_neox_japanese.*"),
    model_types=("gpt_neox_japanese",),
    table_and_fields=table_and_fields,
)
