"""Qwen 3.5's text model as `transformers` names it: Qwen3-Next whose delta layers have a projection for each part."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts import qwen3_next
from attn_np.weights.layouts._hf_config import HFConfig

DELTA = replace(
    qwen3_next.DELTA,
    rules={
        ("w_q", "w_k", "w_v"): ("linear_attn.in_proj_qkv.weight", "(g k | g k | h v) d -> d g k, d g k, d h v"),
        "w_gate": ("linear_attn.in_proj_z.weight", "(h v) d -> d h v"),
        "w_beta": ("linear_attn.in_proj_b.weight", "h d -> d h"),
        "w_a": ("linear_attn.in_proj_a.weight", "h d -> d h"),
        ("w_q_conv", "w_k_conv", "w_v_conv"): (
            "linear_attn.conv1d.weight",
            "(g k | g k | h v) a x -> (a x) g k, (a x) g k, (a x) h v",
        ),
        **{name: qwen3_next.DELTA.rules[name] for name in ("a_log", "dt_bias", "w_norm", "w_o")},
    },
)


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen3_5TextConfig`: Qwen3-Next's, with another default of key/value heads."""
    with hf.seen_as({}, {"num_key_value_heads": 4}) as fields:
        return qwen3_next.table_and_fields(fields, layer, part)


LAYOUT = replace(
    qwen3_next.LAYOUT,
    origin="transformers: Qwen3_5TextModel and the models that keep its names",
    tables={"decoder": qwen3_next.TABLE, "gated_delta": DELTA},
    model_types=("qwen3_5_text",),
    table_and_fields=table_and_fields,
)
