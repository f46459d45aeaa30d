"""Qwen3-Next as `transformers` names it: layers of the gated delta rule, and of softmax attention with gated outputs.

`q_proj` has each head's query and then its gate. `in_proj_qkvz`, in delta layers, has each key head's query and key,
then the values and the gates of its value heads.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, skip_rotary, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary
from attn_np.weights.layouts.qwen3 import TABLE as NORMED


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen3NextConfig`. In attention norms are stored minus 1, a quarter of a head turns."""
    every, eps = hf.integer("full_attention_interval", 4), hf.number("rms_norm_eps", 1e-6)
    kinds = ("linear_attention", "full_attention")
    if hf.layer_type(layer, lambda n: kinds[(n + 1) % every == 0], *kinds) == "linear_attention":
        return "gated_delta", delta_fields(hf) | {"norm_eps": eps}
    hf.skip(*(f"linear_{name}" for name in DELTA_CONFIG_NAMES.values()))
    fields: dict[str, Any] = sizes(hf, kv_heads=2, head_dim=256) | biases(hf) | GATED | {"norm_eps": eps}
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.25)


def delta_fields(hf: HFConfig) -> dict[str, Any]:
    """Our fields of a layer of the gated delta rule but for the epsilon of its contexts."""
    hf.only("hidden_act", "silu")  # of the convolution as well
    hf.skip("num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "partial_rotary_factor")
    skip_rotary(hf)
    defaults = {"num_heads": 32, "num_key_heads": 16, "head_dim": 128, "value_head_dim": 128, "conv_size": 4}
    fields = {ours: hf.integer(f"linear_{DELTA_CONFIG_NAMES[ours]}", default) for ours, default in defaults.items()}
    return {"d_model": hf.integer("hidden_size"), "qk_norm_eps": 1e-6} | fields


DELTA_CONFIG_NAMES = {
    "num_heads": "num_value_heads",
    "num_key_heads": "num_key_heads",
    "head_dim": "key_head_dim",
    "value_head_dim": "value_head_dim",
    "conv_size": "conv_kernel_dim",
}
GATED = {"gate": True, "norm": "rms", "norm_offset": 1.0}
TABLE = table(
    rules={
        ("w_q", "w_gate"): ("self_attn.q_proj.weight", "(h (k | v)) d -> d h k, d h v"),
        ("b_q", "b_gate"): ("self_attn.q_proj.bias", "(h (k | v)) -> h k, h v"),
        **{name: NORMED.rules[name] for name in ("w_q_norm", "w_k_norm")},
    },
    flags=BIAS_FLAGS,
    not_in_weights=("norm_eps",),
    fixed=GATED,
)
DELTA = Table(
    rules={
        ("w_q", "w_k", "w_v", "w_gate"): (
            "linear_attn.in_proj_qkvz.weight",
            "(g (k | k | r v | r v)) d -> d g k, d g k, d (g r) v, d (g r) v",
        ),
        ("w_beta", "w_a"): ("linear_attn.in_proj_ba.weight", "(g (r | r)) d -> d (g r), d (g r)"),
        ("w_q_conv", "w_k_conv", "w_v_conv"): (
            "linear_attn.conv1d.weight",
            "(g k | g k | g r v) a x -> (a x) g k, (a x) g k, (a x) (g r) v",
        ),
        "a_log": ("linear_attn.A_log", "h -> h"),
        "dt_bias": ("linear_attn.dt_bias", "h -> h"),
        "w_norm": ("linear_attn.norm.weight", "v -> v"),
        "w_o": ("linear_attn.out_proj.weight", "o (h v) -> h v o"),
    },
    letters={
        "d_model": "d",
        "num_heads": "h",
        "num_key_heads": "g",
        "head_dim": "k",
        "value_head_dim": "v",
        "conv_size": "x",
    },
    not_in_weights=("form", "chunk_size", "norm_eps", "qk_norm_eps"),
    constants={"a": 1},
)
TABLES = {"decoder": TABLE, "gated_delta": DELTA}
LAYOUT = replace(
    family("Qwen3NextModel", table_and_fields, TABLES, model_types=("qwen3_next",), elsewhere=("mtp.*",)),
    variant_from_tensors=True,
)
