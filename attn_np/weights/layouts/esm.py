"""ESM as `transformers` names it: BERT's names, with positions in the embeddings or rotary ones."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.bert import LAYOUT as BERT


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `EsmConfig`: queries are scaled before they are rotated, which is the same."""
    hf.only("add_cross_attention", False)
    hf.skip("emb_layer_norm_before", "token_dropout", "mask_token_id", "is_folding_model", "esmfold_config")
    hf.skip("vocab_list")
    positions, base = hf.only("position_embedding_type", "absolute", "rotary"), hf.number("rope_theta", 10000.0)
    fields = {
        "d_model": hf.integer("hidden_size"),
        "num_heads": hf.integer("num_attention_heads"),
        "causal": hf.flag("is_decoder", False),
    }
    if positions != "rotary":
        return "mha", fields
    return "decoder", fields | {"rope_base": base} | dict.fromkeys(BIAS_FLAGS, True)


NAMES = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
}
ROTARY = table(not_in_weights=("causal",), fixed=dict.fromkeys(BIAS_FLAGS, True), names=NAMES)
LAYOUT = replace(
    BERT,
    origin="transformers: EsmModel and the models that keep its names",
    prefixes=("encoder.layer.{layer}.", "esm.encoder.layer.{layer}."),
    tables=dict(BERT.tables) | {"decoder": ROTARY},
    ignored=("attention.LayerNorm.*", "attention.self.rotary_embeddings.inv_freq", "LayerNorm.*", *BERT.ignored),
    elsewhere=(
        *(
            f"{start}{key}"
            for start in ("", "esm.")
            for key in (
                "embeddings.*",
                "encoder.layer.*",
                "encoder.emb_layer_norm_after.*",
                "encoder.rotary_embeddings.inv_freq",
                "pooler.dense.*",
                "contact_head.*",
            )
        ),
        "lm_head.*",
        "classifier.*",
    ),
    other_sidecar_names={},
    model_types=("esm",),
    table_and_fields=table_and_fields,
)
