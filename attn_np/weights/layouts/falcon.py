"""Falcon as `transformers` names it: the rows of a key/value head's queries, key and value are one block.

One pattern covers the three kinds: one key/value head for all queries (7B), some (40B), and one for each query head,
which may have slopes instead of rotary positions (RW). The library adds ALiBi's biases before it scales, rounded to
bfloat16: beyond 256 positions some are equal. Ours are as exact as the other numbers.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._decoder import skip_rotary
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `FalconConfig`: slopes are for models with as many key/value heads as query heads."""
    hf.skip("parallel_attn", "ffn_hidden_size", "activation", "num_ln_in_parallel_attn")
    hf.skip("apply_residual_connection_post_layernorm")
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    kv_heads, multi_query = hf.integer("num_kv_heads", heads), hf.flag("multi_query", True)
    if not hf.flag("new_decoder_architecture", False):
        kv_heads = 1 if multi_query else heads
    bias = hf.flag("bias", False)
    if hf.flag("alibi", False):
        if kv_heads != heads:
            hf.refuse("alibi", f"false beside {kv_heads} heads of keys for {heads} of queries", True)
        skip_rotary(hf)
        return "alibi", {"d_model": width, "num_heads": heads, "use_bias": bias} | ALIBI_FIXED
    return "decoder", {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "qkv_bias": bias,
        "output_bias": bias,
        **whole_head_rotary(hf, width // heads),
    }


ALIBI_FIXED = {"causal": True, "scale_slopes": True}
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
                "w_o": ("self_attention.dense.weight", "o (h v) -> h v o"),
                "b_o": ("self_attention.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h", "num_kv_heads": "g"},
            flags={"qkv_bias": ("b_q", "b_k", "b_v"), "output_bias": ("b_o",)},
            not_in_weights=ROTARY_FIELDS,
        ),
        "alibi": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("self_attention.query_key_value.weight", "(h p k) d -> p d h k"),
                ("b_q", "b_k", "b_v"): ("self_attention.query_key_value.bias", "(h p k) -> p h k"),
                "w_o": ("self_attention.dense.weight", "o (h v) -> h v o"),
                "b_o": ("self_attention.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            flags={"use_bias": ("b_q", "b_k", "b_v", "b_o")},
            fixed=ALIBI_FIXED,
        ),
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
    variant_from_tensors=True,
    metadata={"format": "pt"},
    model_types=("falcon",),
    table_and_fields=table_and_fields,
)
