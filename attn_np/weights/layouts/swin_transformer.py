"""Swin as `transformers` names it: stages of blocks, each with half the rows and columns of the one before."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig

STAGES = ("stage1", "stage2", "stage3", "stage4")
OTHER_FIELDS = (
    "num_channels", "mlp_ratio", "drop_path_rate", "use_absolute_embeddings", "encoder_stride", "path_norm",
    "hidden_size", "num_layers", "stage_names", "out_features", "out_indices",
)  # fmt: skip


def entry(hf: HFConfig, key: str, stage: int) -> int:
    """The entry for a stage of a list with one for each."""
    values = hf.get(key)
    if not isinstance(values, list) or stage >= len(values) or type(values[stage]) is not int:
        hf.refuse(key, f"a list with an integer for {STAGES[stage]}")
    return values[stage]


def side_lengths(hf: HFConfig, key: str, default: int | None = None) -> tuple[int, int]:
    """Height and width, which may be given as one number."""
    value = hf.get(key, default)
    sides = [value, value] if type(value) is int else value
    if not isinstance(sides, list) or len(sides) != 2 or any(type(n) is not int or n < 1 for n in sides):
        hf.refuse(key, "an integer from 1, or two")
    return sides[0], sides[1]


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `SwinConfig`. The windows of every other block are shifted."""
    stage = STAGES.index(part)
    hf.skip(*OTHER_FIELDS)
    hf.count_layers(entry(hf, "depths", stage))
    if layer >= entry(hf, "depths", stage):
        hf.refuse("depths", f"more than {layer} blocks in {part}, for layer {layer}")
    hf.only("qkv_bias", True)  # the output has a bias, and our layer has all four or none
    pairs = zip(side_lengths(hf, "image_size"), side_lengths(hf, "patch_size"), strict=True)
    height, width = (-(-image // (patch * 2**stage)) for image, patch in pairs)
    size = hf.integer("window_size")
    if size > min(height, width):
        hf.refuse("window_size", f"at most {min(height, width)}, the shorter side of the grid of {part}")
    return "swin", {
        "d_model": hf.integer("embed_dim") * 2**stage,
        "num_heads": entry(hf, "num_heads", stage),
        "height": height,
        "width": width,
        "window_size": size,
        "shift": size // 2 if layer % 2 and size < min(height, width) else 0,
    }


def prefixes(stage: int) -> tuple[str, str]:
    """The prefixes of the keys of a stage's blocks."""
    blocks = f"encoder.layers.{stage}.blocks.{{layer}}."
    return blocks, f"swin.{blocks}"


LAYOUT = Layout(
    origin="transformers: SwinModel",
    prefixes={name: prefixes(stage) for stage, name in enumerate(STAGES)},
    tables={
        "swin": Table(
            rules={
                "w_q": ("attention.self.query.weight", "(h k) d -> d h k"),
                "w_k": ("attention.self.key.weight", "(h k) d -> d h k"),
                "w_v": ("attention.self.value.weight", "(h v) d -> d h v"),
                "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
                "w_bias": ("attention.self.relative_position_bias_table", "x h -> x h"),
                "b_q": ("attention.self.query.bias", "(h k) -> h k"),
                "b_k": ("attention.self.key.bias", "(h k) -> h k"),
                "b_v": ("attention.self.value.bias", "(h v) -> h v"),
                "b_o": ("attention.output.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("height", "width", "window_size", "shift"),
        )
    },
    ignored=(
        "attention.self.relative_position_index",  # follows from the window
        "layernorm_before.*",
        "layernorm_after.*",
        "intermediate.dense.*",
        "output.dense.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "swin.") for key in ("embeddings.*", "encoder.layers.*", "layernorm.*")),
        "classifier.*",
        "decoder.*",  # of masked images
        "hidden_states_norms.*",  # of a backbone
    ),
    metadata={"format": "pt"},
    model_types=("swin",),
    table_and_fields=table_and_fields,
)
