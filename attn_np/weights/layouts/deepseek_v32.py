"""DeepSeek-V3.2 and GLM-5 as `transformers` names them: DeepSeek-V3's attention with an indexer that chooses keys."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.deepseek_v3 import LATENT_QUERIES
from attn_np.weights.layouts.deepseek_v3 import LAYOUT as DEEPSEEK_V3
from attn_np.weights.layouts.deepseek_v3 import table_and_fields as deepseek_v3


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DeepseekV32Config` or a `GlmMoeDsaConfig`: GLM's indexer rotates neighbours."""
    glm = hf.model_type() == "glm_moe_dsa"
    hf.only("rope_interleave", True)
    hf.skip("mlp_layer_types", "mlp_bias", *INDEX_SCHEDULE)
    if "layer_types" in hf:
        hf.layer_type(layer, lambda _: "indexed_attention", "indexed_attention")
    if "indexer_types" in hf:
        kinds = hf.get("indexer_types")
        if not isinstance(kinds, list) or layer >= len(kinds):
            hf.refuse("indexer_types", f"a list with an entry for layer {layer}")
        elif kinds[layer] != "full":
            hf.refuse("indexer_types", f"'full', an indexer of its own, for layer {layer}", kinds[layer])
    sizes = {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32} if glm else {}
    with hf.seen_as({}, sizes) as fields:
        _, ours = deepseek_v3(fields, layer, part)
        ours |= {
            "index_keys": fields.integer("index_topk", 2048),
            "index_heads": fields.integer("index_n_heads", 64),
            "index_dim": fields.integer("index_head_dim", 128),
        }
    return "mla", ours | ({"index_rope_layout": "interleaved"} if glm else {})


# From these GLM-5 makes `indexer_types`.
INDEX_SCHEDULE = ("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")

INDEXED = replace(
    LATENT_QUERIES,
    rules={
        **LATENT_QUERIES.rules,
        "w_index_q": ("self_attn.indexer.wq_b.weight", "(r m) e -> e r m"),
        "w_index_k": ("self_attn.indexer.wk.weight", "m d -> d m"),
        "w_index_norm": ("self_attn.indexer.k_norm.weight", "m -> m"),
        "b_index_norm": ("self_attn.indexer.k_norm.bias", "m -> m"),
        "w_index_heads": ("self_attn.indexer.weights_proj.weight", "r d -> d r"),
    },
    letters={**LATENT_QUERIES.letters, "index_heads": "r", "index_dim": "m"},
    not_in_weights=(*LATENT_QUERIES.not_in_weights, "index_keys", "index_rope_layout"),
    variant=None,
)

LAYOUT = replace(
    DEEPSEEK_V3,
    origin="transformers: DeepseekV32Model, GlmMoeDsaModel",
    tables={"mla": INDEXED},
    model_types=("deepseek_v32", "glm_moe_dsa"),
    table_and_fields=table_and_fields,
)
