"""Flint as `transformers` names it: normed queries and keys, a learned sink for each head, windows that rotate."""

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
    """The table and fields of a `FlintConfig`: layers without a window do not rotate."""
    fields: dict[str, Any] = sizes(hf, kv_heads=4, head_dim=128) | biases(hf) | {"norm": "rms", "sinks": True}
    fields["norm_eps"] = hf.number("rms_norm_eps", 1e-6)
    last = hf.integer("num_hidden_layers", 49) - 1

    def default(n: int) -> str:
        return "full_attention" if n < 2 or n % 4 == 1 or n == last else "sliding_attention"

    if is_sliding(hf, layer, default):
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | required_window_field(hf, layer, 513)
    hf.skip("sliding_window")
    return "decoder", fields | skip_rotary(hf)


TABLE = table(
    rules={
        "sinks": ("self_attn.softmax_offset", "h -> h"),
        **{name: QWEN3.rules[name] for name in ("w_q_norm", "w_k_norm")},
    },
    flags=BIAS_FLAGS,
    not_in_weights=("window", "norm_eps"),
    fixed={"sinks": True, "norm": "rms"},
)
LAYOUT = family("FlintModel", table_and_fields, {"decoder": TABLE}, model_types=("flint",))
