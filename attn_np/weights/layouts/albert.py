"""ALBERT as `transformers` names it: layers of a group have the same weights, so a layer's number is its group's."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig

GROUP = "encoder.albert_layer_groups.{layer}.albert_layers.0.attention."


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `AlbertConfig`; a group of several layers, one after the other, is refused."""
    hf.only("inner_group_num", 1)
    hf.only("position_embedding_type", "absolute")
    hf.check_layer("num_hidden_groups", layer)
    hf.count_layers(hf.integer("num_hidden_groups", 1))
    hf.skip("embedding_size", "net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    return "mha", {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads")}


LAYOUT = Layout(
    origin="transformers: AlbertModel",
    prefixes=(f"albert.{GROUP}", GROUP),
    tables={
        "mha": Table(
            rules={
                "w_q": ("query.weight", "(h k) d -> d h k"),
                "w_k": ("key.weight", "(h k) i -> i h k"),
                "w_v": ("value.weight", "(h v) j -> j h v"),
                "w_o": ("dense.weight", "o (h v) -> h v o"),
                "b_q": ("query.bias", "(h k) -> h k"),
                "b_k": ("key.bias", "(h k) -> h k"),
                "b_v": ("value.bias", "(h v) -> h v"),
                "b_o": ("dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
        )
    },
    ignored=("LayerNorm.*",),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "albert.") for key in ("embeddings.*", "encoder.*", "pooler.*")),
        *("predictions.*", "sop_classifier.*", "classifier.*", "qa_outputs.*"),
    ),
    metadata={"format": "pt"},
    model_types=("albert",),
    table_and_fields=table_and_fields,
)
