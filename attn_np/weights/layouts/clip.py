"""CLIP as `transformers` names it: a tower that reads and one that sees, each of plain heads."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._encoder_decoder import RULES
from attn_np.weights.layouts._hf_config import HFConfig

TOWERS = ("text", "vision")


def table_and_fields(hf: HFConfig, layer: int, part: str, *, wide: bool = False) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `CLIPConfig`, of its tower's; the one that reads is causal.

    With `wide` both towers have the default sizes of the one that sees.
    """
    hf.skip("projection_dim", "logit_scale_init_value", *(f"{tower}_config" for tower in TOWERS))
    # Of the first files, the same towers again.
    hf.skip(*(f"{tower}_config_dict" for tower in TOWERS), "initializer_factor")
    stated = hf.get(f"{part}_config")
    if not isinstance(stated, dict):
        hf.refuse(f"{part}_config", "an object")
    return "mha", fields(hf.part(f"{part}_config", stated), layer, "vision" if wide else part) | {
        "causal": part == "text"
    }


def fields(tower: HFConfig, layer: int, part: str) -> dict[str, Any]:
    """Our sizes of a tower; what its object leaves out is as in the first model."""
    tower.check_layer("num_hidden_layers", layer)
    width, heads = {"text": (512, 8), "vision": (768, 12)}[part]
    return {
        "d_model": tower.integer("hidden_size", width),
        "num_heads": tower.integer("num_attention_heads", heads),
    }


LAYOUT = Layout(
    origin="transformers: CLIPModel and the models that keep its names",
    prefixes={tower: (f"{tower}_model.encoder.layers.{{layer}}.self_attn.",) for tower in TOWERS},
    tables={
        "mha": Table(
            rules=RULES | {"b_k": ("k_proj.bias", "(h k) -> h k")},
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("causal",),
        )
    },
    elsewhere=(
        *(f"{tower}_model.{key}" for tower in TOWERS for key in ("embeddings.*", "encoder.layers.*")),
        *("text_model.final_layer_norm.*", "vision_model.pre_layrnorm.*", "vision_model.post_layernorm.*"),
        *("text_projection.*", "visual_projection.*", "logit_scale", "logit_bias", "vision_model.head.*"),
        "text_model.head.*",
    ),
    metadata={"format": "pt"},
    model_types=("clip",),
    table_and_fields=table_and_fields,
)
