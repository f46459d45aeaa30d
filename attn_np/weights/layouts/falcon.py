"""Falcon as `transformers` names it: for each head of keys its queries, the key and the value stand together.

One pattern holds the three kinds: one head of keys for all queries (7B), some (40B), and one for each query head.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._stated import ROTARY, Stated, rotary


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`FalconConfig`. Its slopes (`alibi`) are rounded to bfloat16 and divided by the root of the head's width."""
    stated.only("alibi", False)
    stated.skip("parallel_attn", "ffn_hidden_size", "activation", "num_ln_in_parallel_attn")
    stated.skip("apply_residual_connection_post_layernorm")
    width, heads = stated.integer("hidden_size"), stated.integer("num_attention_heads")
    groups, shared = stated.integer("num_kv_heads", heads), stated.flag("multi_query", True)
    if not stated.flag("new_decoder_architecture", False):
        groups = 1 if shared else heads
    bias = stated.flag("bias", False)
    return "decoder", {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": groups,
        "qkv_bias": bias,
        "output_bias": bias,
        **rotary(stated, width // heads),
    }


LAYOUT = Layout(
    origin="transformers: FalconModel",
    prefixes=("transformer.h.{layer}.", "h.{layer}."),
    tables={
        "decoder": Table(
            rules={
                ("w_q", "w_k", "w_v"): (
                    "self_attention.query_key_value.weight",
                    "(g (r k | k | k)) d -> d (g r) k, d g k, d g k",
                ),
                ("b_q", "b_k", "b_v"): (
                    "self_attention.query_key_value.bias",
                    "(g (r k | k | k)) -> (g r) k, g k, g k",
                ),
                "w_o": ("self_attention.dense.weight", "d (h v) -> h v d"),
                "b_o": ("self_attention.dense.bias", "d -> d"),
            },
            sizes={"d_model": "d", "num_heads": "h", "num_kv_heads": "g"},
            flags={"qkv_bias": ("b_q", "b_k", "b_v"), "output_bias": ("b_o",)},
            free=ROTARY,
        )
    },
    ignored=(
        "self_attention.rotary_emb.inv_freq",  # follows from the config
        "self_attention.maybe_rotary.inv_freq",
        "input_layernorm.*",
        "post_attention_layernorm.*",
        "ln_attn.*",
        "ln_mlp.*",
        "mlp.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "transformer.") for key in ("word_embeddings.weight", "ln_f.*", "h.*")),
        "lm_head.weight",
        "score.weight",
        "classifier.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("falcon",),
    config=config,
)
