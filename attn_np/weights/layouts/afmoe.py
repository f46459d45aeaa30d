"""AFMoE as `transformers` names it: gated outputs, normed queries and keys, and layers with a window, which rotate."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import (
    BIAS_FLAGS,
    biases,
    family,
    is_sliding,
    required_window_field,
    sizes,
    skip_rotary,
    table,
)
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.qwen3 import TABLE as QWEN3


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `AfmoeConfig`: by default every fourth layer attends to all positions."""
    every = hf.integer("global_attn_every_n_layers", 4)
    hf.skip("num_dense_layers", "route_scale", "mup_enabled", "num_shared_experts", "score_func", "route_norm")
    fields: dict[str, Any] = sizes(hf, head_dim=128) | biases(hf) | {"gate": True, "norm": "rms"}
    fields["norm_eps"] = hf.number("rms_norm_eps", 1e-5)
    if is_sliding(hf, layer, lambda n: "sliding_attention" if (n + 1) % every else "full_attention"):
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | required_window_field(hf, layer, 1024)
    hf.skip("sliding_window")
    return "decoder", fields | skip_rotary(hf)


TABLE = table(
    rules={
        "b_gate": ("self_attn.gate_proj.bias", "(h v) -> h v"),
        "w_gate": ("self_attn.gate_proj.weight", "(h v) d -> d h v"),
        **{name: QWEN3.rules[name] for name in ("w_q_norm", "w_k_norm")},
    },
    flags=BIAS_FLAGS,
    not_in_weights=("window", "norm_eps"),
    fixed={"gate": True, "norm": "rms"},
)
# The gates have no bias where the other projections have one.
TABLE = replace(
    TABLE,
    flags={**TABLE.flags, "qkv_bias": (*TABLE.flags["qkv_bias"], "b_gate")},
    absent=("self_attn.gate_proj.bias",),
)
IGNORED = ("pre_mlp_layernorm.weight", "post_mlp_layernorm.weight")
LAYOUT = family("AfmoeModel", table_and_fields, {"decoder": TABLE}, model_types=("afmoe",), ignored=IGNORED)
