"""Swin V2 as `transformers` names it: stages of blocks, each with half the rows and columns of the one before."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.swin_transformer import OTHER_FIELDS, STAGES, entry, side_lengths

HIDDEN_DIM = 512  # of the network of the position bias, in the library's code


def pretrained_window(hf: HFConfig, stage: int) -> int | None:
    """The size of the windows of earlier training; 0 stands for that of the model."""
    if hf.get("pretrained_window_sizes") is None:
        return None
    size = entry(hf, "pretrained_window_sizes", stage)
    if size < 0 or size == 1:
        hf.refuse("pretrained_window_sizes", f"0 or an integer from 2 for {STAGES[stage]}")
    return size or None


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Swinv2Config`. The windows of every other block are shifted.

    The model was built for a number of rows: windows have no more, and where they have as many nothing is shifted.
    """
    stage = STAGES.index(part)
    hf.skip(*OTHER_FIELDS)
    hf.count_layers(entry(hf, "depths", stage))
    if layer >= entry(hf, "depths", stage):
        hf.refuse("depths", f"more than {layer} blocks in {part}, for layer {layer}")
    hf.only("qkv_bias", True)  # the output has a bias, and our layer has all or none
    images, patches = side_lengths(hf, "image_size"), side_lengths(hf, "patch_size")
    height, width = (-(-image // (patch * 2**stage)) for image, patch in zip(images, patches, strict=True))
    rows, size = images[0] // patches[0] // 2**stage, hf.integer("window_size")
    if rows < 1:
        hf.refuse("image_size", f"at least a row of patches in {part}")
    return "swin", {
        "d_model": hf.integer("embed_dim") * 2**stage,
        "num_heads": entry(hf, "num_heads", stage),
        "height": height,
        "width": width,
        "window_size": min(rows, size),
        "shift": size // 2 if layer % 2 and rows > size else 0,
        "version": 2,
        "hidden_dim": HIDDEN_DIM,
        "pretrained_window_size": pretrained_window(hf, stage),
    }


def prefixes(stage: int) -> tuple[str, str]:
    """The prefixes of the keys of a stage's blocks."""
    blocks = f"encoder.layers.{stage}.blocks.{{layer}}."
    return blocks, f"swinv2.{blocks}"


NETWORK = "attention.self.continuous_position_bias_mlp"
LAYOUT = Layout(
    origin="transformers: Swinv2Model",
    prefixes={name: prefixes(stage) for stage, name in enumerate(STAGES)},
    tables={
        "swin": Table(
            rules={
                "w_q": ("attention.self.query.weight", "(h k) d -> d h k"),
                "w_k": ("attention.self.key.weight", "(h k) d -> d h k"),
                "w_v": ("attention.self.value.weight", "(h v) d -> d h v"),
                "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
                "b_q": ("attention.self.query.bias", "(h k) -> h k"),
                "b_v": ("attention.self.value.bias", "(h v) -> h v"),
                "b_o": ("attention.output.dense.bias", "o -> o"),
                "w_log_scale": ("attention.self.logit_scale", "h 1 1 -> h"),
                "w_bias_in": (f"{NETWORK}.0.weight", "e a -> a e"),
                "b_bias_in": (f"{NETWORK}.0.bias", "e -> e"),
                "w_bias_out": (f"{NETWORK}.2.weight", "h e -> e h"),
            },
            letters={"d_model": "d", "num_heads": "h", "hidden_dim": "e"},
            not_in_weights=("height", "width", "window_size", "shift", "pretrained_window_size"),
            fixed={"version": 2},
            constants={"a": 2},
        )
    },
    ignored=(
        "attention.self.relative_position_index",  # these two follow from the windows
        "attention.self.relative_coords_table",
        "layernorm_before.*",
        "layernorm_after.*",
        "intermediate.dense.*",
        "output.dense.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "swinv2.") for key in ("embeddings.*", "encoder.layers.*", "layernorm.*")),
        "classifier.*",
        "decoder.*",  # of masked images
        "hidden_states_norms.*",  # of a backbone
    ),
    metadata={"format": "pt"},
    model_types=("swinv2",),
    table_and_fields=table_and_fields,
)
