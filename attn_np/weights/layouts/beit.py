"""BEiT as `transformers` writes it: ViT whose keys have no bias."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.vit import LAYOUT as VIT
from attn_np.weights.layouts.vit import OTHER_FIELDS as VIT_FIELDS


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BeitConfig`: tables of distances between patches are none of our layers'."""
    for key in ("use_relative_position_bias", "use_shared_relative_position_bias"):
        hf.only(key, False)
    hf.skip(*VIT_FIELDS, *OTHER_FIELDS)
    return "mha", {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads")}


OTHER_FIELDS = (
    "use_mask_token", "use_absolute_position_embeddings", "layer_scale_init_value", "drop_path_rate",
    "use_mean_pooling", "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels",
    "auxiliary_num_convs", "auxiliary_concat_input", "semantic_loss_ignore_index", "add_fpn", "reshape_hidden_states",
    "stage_names", "out_features", "out_indices",
)  # fmt: skip
LAYOUT = replace(
    VIT,
    origin="transformers: BeitModel and the models that keep its names",
    prefixes=tuple(f"{start}encoder.layer.{{layer}}." for start in ("beit.", "data2vec_vision.", "")),
    tables={
        "mha": Table(
            rules=dict(VIT.tables["mha"].rules),
            letters={"d_model": "d", "num_heads": "h"},
            absent=("attention.attention.key.bias",),
        )
    },
    ignored=(*VIT.ignored, "lambda_1", "lambda_2"),
    elsewhere=(*VIT.elsewhere, "beit.*", "data2vec_vision.*", "pooler.layernorm.*", "lm_head.*"),
    model_types=("beit",),
    table_and_fields=table_and_fields,
)
