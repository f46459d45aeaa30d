"""BART as `transformers` names it: the encoder's own attention, the decoder's own, and the one between them."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._encoder_decoder import ELSEWHERE, PREFIXES, RULES, fields
from attn_np.weights.layouts._hf_config import HFConfig

# Fields of the first files, of norms and positions around the layers.
OLD_FIELDS = (
    "add_bias_logits",
    "add_final_layer_norm",
    "classif_dropout",
    "extra_pos_embeddings",
    "force_bos_token_to_be_generated",
    "normalize_before",
    "normalize_embedding",
    "static_position_embeddings",
)


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BartConfig`."""
    hf.skip(*OLD_FIELDS)
    return "mha", fields(hf, layer, part)


LAYOUT = Layout(
    origin="transformers: BartModel",
    prefixes=PREFIXES,
    tables={
        "mha": Table(
            rules=RULES | {"b_k": ("k_proj.bias", "(h k) -> h k")},
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("causal",),
        )
    },
    elsewhere=(
        *ELSEWHERE,
        *(
            f"{start}{key}"
            for start in ("model.", "")
            for key in ("shared.weight", "encoder.layernorm_embedding.*", "decoder.layernorm_embedding.*")
        ),
        "final_logits_bias",
        "lm_head.weight",
        "classification_head.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("bart",),
    table_and_fields=table_and_fields,
)
