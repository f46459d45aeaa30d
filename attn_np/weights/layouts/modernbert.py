"""ModernBERT as `transformers` names it: rotary positions in both directions, and a window in two of three layers."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, is_sliding, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `ModernBertConfig`: `local_attention` counts both sides without the query's own."""
    hf.skip(*OTHER_FIELDS)
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    every, side = hf.integer("global_attn_every_n_layers", 3), hf.integer("local_attention", 128) // 2
    local = is_sliding(hf, layer, lambda n: "sliding_attention" if n % every else "full_attention")
    fields = {"d_model": width, "num_heads": heads, "causal": False} | biases(hf)
    fields |= {"window": (side, side)} if local else {}
    global_base, local_base = hf.number("global_rope_theta", 160000.0), hf.number("local_rope_theta", 10000.0)
    kind, base = ("sliding_attention", local_base) if local else ("full_attention", global_base)
    return "decoder", fields | whole_head_rotary(hf, width // heads, layer_type=kind, base=base)


OTHER_FIELDS = (
    "cls_token_id", "initializer_cutoff_factor", "norm_eps", "norm_bias", "embedding_dropout", "mlp_dropout",
    "decoder_bias", "classifier_pooling", "classifier_bias", "classifier_activation", "deterministic_flash_attn",
    "sparse_prediction", "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad",
    # In the published files, where the model does not read it.
    "position_embedding_type",
)  # fmt: skip
ROWS = ("w_q", "w_k", "w_v")
TABLE = table(
    rules={
        ROWS: ("attn.Wqkv.weight", "(p h k) d -> p d h k"),
        ("b_q", "b_k", "b_v"): ("attn.Wqkv.bias", "(p h k) -> p h k"),
    },
    flags=BIAS_FLAGS,
    not_in_weights=("window",),
    fixed={"causal": False},
    names={"self_attn.o_proj": "attn.Wo"},
)
LAYOUT = family(
    "ModernBertModel",
    table_and_fields,
    {"decoder": TABLE},
    model_types=("modernbert",),
    ignored=("attn_norm.*", "mlp_norm.*"),
    elsewhere=("model.embeddings.*", "embeddings.*", "model.final_norm.*", "final_norm.*", "head.*", "decoder.*"),
)
