"""BEiT as `transformers` writes it: ViT whose keys have no bias, with a table of offsets in each layer, or in all."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.swin_transformer import side_lengths
from attn_np.weights.layouts.vit import LAYOUT as VIT
from attn_np.weights.layouts.vit import OTHER_FIELDS as VIT_FIELDS

OWN, SHARED = "use_relative_position_bias", "use_shared_relative_position_bias"


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BeitConfig`."""
    hf.skip(*VIT_FIELDS, *OTHER_FIELDS)
    sizes = {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads")}
    has_own, is_shared = hf.flag(OWN, False), hf.flag(SHARED, False)
    if has_own and is_shared:
        hf.refuse(SHARED, f"false beside {OWN}: our layer has one table, and both would be added")
    if not has_own and not is_shared:
        return "mha", sizes
    (rows, columns), patch = side_lengths(hf, "image_size", 224), hf.integer("patch_size", 16)
    if rows != columns or not 0 < patch <= rows:
        # The library stretches the table of an oblong grid, as if for another grid.
        hf.refuse("image_size", f"a square with sides of at least a patch, {patch}", [rows, columns])
    side = rows // patch
    return "grid_bias" if has_own else "shared grid_bias", sizes | {"height": side, "width": side}


OTHER_FIELDS = (
    "use_mask_token", "use_absolute_position_embeddings", "layer_scale_init_value", "drop_path_rate",
    "use_mean_pooling", "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels",
    "auxiliary_num_convs", "auxiliary_concat_input", "semantic_loss_ignore_index", "add_fpn", "reshape_hidden_states",
    "stage_names", "out_features", "out_indices",
)  # fmt: skip
OF_STACK = "relative_position_bias.relative_position_bias_table"


def with_bias(key: str, **fields: Any) -> Table:
    """The table of layers with a bias, whose rows have this key."""
    rules: dict[Any, Any] = {name: VIT.tables["mha"].rules[name] for name in ("w_o", "b_q", "b_v", "b_o")}
    weights: dict[Any, Any] = {
        "w_q": ("attention.attention.query.weight", "(h k) d -> d h k"),
        "w_k": ("attention.attention.key.weight", "(h k) d -> d h k"),
        "w_v": ("attention.attention.value.weight", "(h v) d -> d h v"),
        "w_bias": (key, "x h -> x h"),
    }
    letters = {"d_model": "d", "num_heads": "h"}
    return Table(rules=weights | rules, letters=letters, not_in_weights=("height", "width"), **fields)


LAYOUT = replace(
    VIT,
    origin="transformers: BeitModel and the models that keep its names",
    prefixes=tuple(f"{start}encoder.layer.{{layer}}." for start in ("beit.", "data2vec_vision.", "")),
    tables={
        "mha": Table(
            rules=dict(VIT.tables["mha"].rules),
            letters={"d_model": "d", "num_heads": "h"},
            absent=("attention.attention.key.bias",),
        ),
        # A layer that was read from the shared table is written with one of its own: the first that holds it.
        "grid_bias": with_bias(f"attention.attention.{OF_STACK}"),
        "shared grid_bias": with_bias(OF_STACK, keys_beside_layers=(OF_STACK,), variant="grid_bias"),
    },
    ignored=(
        *VIT.ignored,
        "lambda_1",
        "lambda_2",
        "attention.attention.relative_position_bias.relative_position_index",  # follows from the grid
    ),
    elsewhere=(
        *VIT.elsewhere, "beit.*", "data2vec_vision.*", "pooler.layernorm.*", "lm_head.*",
        "encoder.relative_position_bias.relative_position_index",
    ),
    model_types=("beit",),
    table_and_fields=table_and_fields,
)  # fmt: skip
