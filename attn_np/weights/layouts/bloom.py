"""BLOOM as `transformers` names it: each head's rows of query, key and value stand together, positions are slopes.

Its bias is the slope times the key's position, ours minus the slope times the distance: over the keys of a query they
differ by a constant, which the softmax does not see, as no key stands behind its query.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`BloomConfig`; the published files have older names for the width and the heads."""
    stated.layers("n_layer", layer)
    stated.only("skip_bias_add_qkv", False)
    # How sums are carried out, what stands around attention, and what nothing reads.
    stated.skip("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion")
    stated.skip("skip_bias_add", "apply_residual_connection_post_layernorm", "n_inner", "seq_length", "offset_alibi")
    return "alibi", {
        "d_model": stated.integer("n_embed" if "n_embed" in stated else "hidden_size"),
        "num_heads": stated.integer("num_attention_heads" if "num_attention_heads" in stated else "n_head"),
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
                "w_o": ("self_attention.dense.weight", "d (h v) -> h v d"),
                "b_o": ("self_attention.dense.bias", "d -> d"),
            },
            sizes={"d_model": "d", "num_heads": "h"},
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
    config=config,
)
