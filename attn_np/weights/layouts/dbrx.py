"""DBRX as `transformers` names it: one projection of queries, keys and values, whose numbers are limited in size."""

from typing import Any

from attn_np.weights.layouts._base import Layout
from attn_np.weights.layouts._decoder import clip_field, table
from attn_np.weights.layouts._hf_config import IRRELEVANT_FIELDS, HFConfig
from attn_np.weights.layouts.phi3 import QKV_PATTERN


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DbrxConfig`, whose `attn_config` has what is attention's own."""
    hf.check_layer("n_layers", layer)
    hf.skip("max_seq_len", "emb_pdrop", "ffn_config")
    attention = hf.nested("attn_config")
    attention.skip("attn_pdrop", *IRRELEVANT_FIELDS)
    kv_heads = attention.integer("kv_n_heads", 1)
    hf.only("num_key_value_heads", kv_heads)
    return "decoder", {
        "d_model": hf.integer("d_model", 2048),
        "num_heads": hf.integer("n_heads", 16),
        "num_kv_heads": kv_heads,
        "rope_base": base(hf),
        **clip_field(attention),
    }


def base(hf: HFConfig) -> float:
    """The base of rotary positions, which `attn_config` states in the published files.

    Raises:
        ConfigMismatchError: `rope_parameters` has another. The library writes its default there beside the model's own.
    """
    attention, rope = hf.nested("attn_config"), hf.nested("rope_parameters")
    rope.only("rope_type", "default")
    base = attention.number("rope_theta", rope.number("rope_theta", 10000.0))
    if rope.number("rope_theta", base) != base:
        rope.refuse("rope_theta", f"{base} as in attn_config, so that one base is meant")
    return base


TABLE = table(
    rules={("w_q", "w_k", "w_v"): ("norm_attn_norm.attn.Wqkv.weight", QKV_PATTERN)},
    not_in_weights=("clip_qkv",),
    names={"self_attn.o_proj": "norm_attn_norm.attn.out_proj"},
)
LAYOUT = Layout(
    origin="transformers: DbrxModel",
    prefixes=("transformer.blocks.{layer}.", "blocks.{layer}."),
    tables={"decoder": TABLE},
    ignored=("norm_attn_norm.norm_1.weight", "norm_attn_norm.norm_2.weight", "ffn.*"),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "transformer.") for key in ("wte.weight", "norm_f.weight", "blocks.*")),
        "lm_head.weight",
    ),
    metadata={"format": "pt"},
    model_types=("dbrx",),
    table_and_fields=table_and_fields,
)
