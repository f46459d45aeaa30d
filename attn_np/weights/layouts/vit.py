"""ViT as `transformers` writes it: query, key and value under `attention.attention`, the output beside it."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig

OTHER_FIELDS = ("image_size", "patch_size", "num_channels", "encoder_stride", "pooler_output_size", "pooler_act")


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `ViTConfig`: without `qkv_bias` the output still has a bias, which `decoder` allows."""
    hf.skip(*OTHER_FIELDS)
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    sizes = {"d_model": width, "num_heads": heads}
    if hf.flag("qkv_bias", True):
        return "mha", sizes
    return "decoder", sizes | {"causal": False, "rope_base": None, "output_bias": True}


def rules(key_letter: str, value_letter: str, heads: str) -> dict[Any, tuple[str, str]]:
    """The rules of the weights, with a variant's letters of the widths of keys and values, and of their heads."""
    return {
        "w_q": ("attention.attention.query.weight", "(h k) d -> d h k"),
        "w_k": ("attention.attention.key.weight", f"({heads} k) {key_letter} -> {key_letter} {heads} k"),
        "w_v": ("attention.attention.value.weight", f"({heads} v) {value_letter} -> {value_letter} {heads} v"),
        "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
        "b_o": ("attention.output.dense.bias", "o -> o"),
    }


LAYOUT = Layout(
    origin="transformers: ViTModel",
    prefixes=("encoder.layer.{layer}.", "vit.encoder.layer.{layer}."),
    tables={
        "mha": Table(
            rules=rules("i", "j", "h")
            | {
                "b_q": ("attention.attention.query.bias", "(h k) -> h k"),
                "b_k": ("attention.attention.key.bias", "(h k) -> h k"),
                "b_v": ("attention.attention.value.bias", "(h v) -> h v"),
            },
            letters={"d_model": "d", "num_heads": "h"},
        ),
        "decoder": Table(
            rules=rules("d", "d", "g"),
            letters={"d_model": "d", "num_heads": "h"},
            fixed={"causal": False, "rope_base": None, "output_bias": True},
        ),
    },
    ignored=("layernorm_before.*", "layernorm_after.*", "intermediate.dense.*", "output.dense.*"),
    elsewhere=(
        *(
            f"{start}{key}"
            for start in ("", "vit.")
            for key in ("embeddings.*", "encoder.layer.*", "layernorm.*", "pooler.dense.*")
        ),
        "classifier.*",
        "decoder.*",  # of masked images
    ),
    metadata={"format": "pt"},
    model_types=("vit",),
    table_and_fields=table_and_fields,
)
