"""Longformer as `transformers` names it (`longformer` is our variant): BERT's names, and global projections."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.bert import LAYOUT as BERT


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `LongformerConfig`: `attention_window` counts both sides, in all layers or in each."""
    hf.skip("onnx_export", "attention_mode", "ignore_attention_mask")
    window = hf.get("attention_window", 512)
    if isinstance(window, list):
        window = window[layer] if layer < len(window) else None
    if type(window) is not int or window < 2 or window % 2:
        hf.refuse("attention_window", f"an even number from 2 for layer {layer}")
    fields = {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads")}
    return "longformer", fields | {"half_window": window // 2}


PROJECTIONS = (("q", "query", "k"), ("k", "key", "k"), ("v", "value", "v"))
LAYOUT = replace(
    BERT,
    origin="transformers: LongformerModel",
    prefixes=("encoder.layer.{layer}.", "longformer.encoder.layer.{layer}."),
    tables={
        "longformer": Table(
            rules={
                **{
                    f"w_{letter}{end}": (f"attention.self.{name}{end}.weight", f"(h {x}) d -> d h {x}")
                    for letter, name, x in PROJECTIONS
                    for end in ("", "_global")
                },
                **{
                    f"b_{letter}{end}": (f"attention.self.{name}{end}.bias", f"(h {x}) -> h {x}")
                    for letter, name, x in PROJECTIONS
                    for end in ("", "_global")
                },
                "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
                "b_o": ("attention.output.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("half_window",),
        )
    },
    elsewhere=(*BERT.elsewhere, *(f"longformer.{key}" for key in BERT.elsewhere), "lm_head.*"),
    other_sidecar_names={},
    model_types=("longformer",),
    table_and_fields=table_and_fields,
)
