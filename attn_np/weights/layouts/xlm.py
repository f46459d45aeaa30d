"""XLM as `transformers` names it: plain heads, in both directions or causal, in a list of their own."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.distilbert import RULES


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `XLMConfig`."""
    hf.check_layer("n_layers", layer)
    hf.only("pruned_heads", {})
    hf.only("is_encoder", True)
    hf.skip(*OTHER_FIELDS, *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels")))
    sizes = {"d_model": hf.integer("emb_dim"), "num_heads": hf.integer("n_heads")}
    return "mha", sizes | {"causal": hf.flag("causal", False)}


OTHER_FIELDS = (
    "gelu_activation", "sinusoidal_embeddings", "asm", "n_langs", "use_lang_emb", "unk_index", "mask_index",
    "start_n_top", "end_n_top", "lang_id", "bos_index", "eos_index", "pad_index", "embed_init_std", "init_std",
    "n_words", "id2lang", "lang2id", "max_vocab", "min_count", "same_enc_dec", "share_inout_emb", "encoder_only",
    "pre_norm", "summary_first_dropout", "mask_token_id", "lang_emb", "layerdrop",
)  # fmt: skip
LAYOUT = Layout(
    origin="transformers: XLMModel",
    prefixes=("transformer.attentions.{layer}.", "attentions.{layer}."),
    tables={"mha": Table(rules=RULES, letters={"d_model": "d", "num_heads": "h"}, not_in_weights=("causal",))},
    elsewhere=("transformer.*", "pred_layer.*", "attentions.*", "layer_norm1.*", "layer_norm2.*", "ffns.*", "*emb*"),
    metadata={"format": "pt"},
    model_types=("xlm",),
    table_and_fields=table_and_fields,
)
