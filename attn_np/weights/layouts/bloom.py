"""BLOOM as `transformers` names it: rows of query, key and value are interleaved by head, and positions are slopes.

Its bias is the slope times the key's position, ours minus the slope times the distance. Attention is causal, so the two
differ by a constant over the keys of a query, which the softmax ignores.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BloomConfig`; the published files have older names for the width and the heads."""
    hf.check_layer("n_layer", layer)
    hf.only("skip_bias_add_qkv", False)
    # The order of sums, the model around attention, and fields that the model ignores.
    hf.skip("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion")
    hf.skip("skip_bias_add", "apply_residual_connection_post_layernorm", "n_inner", "seq_length", "offset_alibi")
    return "alibi", {
        "d_model": hf.integer("n_embed" if "n_embed" in hf else "hidden_size"),
        "num_heads": hf.integer("num_attention_heads" if "num_attention_heads" in hf else "n_head"),
        "causal": True,
    }


LAYOUT = Layout(
    origin="transformers: BloomModel",
    prefixes=("transformer.h.{layer}.", "h.{layer}."),
    tables={
        "alibi": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("self_attention.query_key_value.weight", "(h p k) d -> p d h k"),
                ("b_q", "b_k", "b_v"): ("self_attention.query_key_value.bias", "(h p k) -> p h k"),
                "w_o": ("self_attention.dense.weight", "o (h v) -> h v o"),
                "b_o": ("self_attention.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            fixed={"causal": True},
        )
    },
    ignored=("input_layernorm.*", "post_attention_layernorm.*", "mlp.*"),
    elsewhere=(
        *(
            f"{start}{key}"
            for start in ("", "transformer.")
            for key in ("word_embeddings.weight", "word_embeddings_layernorm.*", "ln_f.*", "h.*")
        ),
        "lm_head.weight",
        "score.weight",
        "classifier.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("bloom",),
    table_and_fields=table_and_fields,
)
