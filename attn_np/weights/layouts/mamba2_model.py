"""Mamba-2 as `transformers` names it.

`in_proj` has the gate, the values, keys and queries, and the steps; the convolution has one filter for each of the
middle three. The norm has as many groups as there are heads of keys.
"""

from math import inf
from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Mamba2Config`, whose steps have no limits and whose projections no biases.

    Configs of Mamba-Codestral state `norm_before_gate`, which `transformers` does not read: the gate comes first.
    """
    hf.check_layer("num_hidden_layers", layer)
    hf.only("hidden_act", "silu")
    hf.only("use_bias", False)
    hf.only("time_step_limit", [0.0, inf], [0.0, {"__float__": "Infinity"}])
    hf.only("rms_norm", True)
    hf.skip("rescale_prenorm_residual", "residual_in_fp32", "chunk_size", "expand", "norm_before_gate")
    hf.skip(*(f"time_step_{name}" for name in ("rank", "min", "max", "floor", "scale", "init_scheme")))
    sizes = {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4}
    found = {name: hf.integer(name, default) for name, default in sizes.items()}
    return "mamba2", {
        "d_model": hf.integer("hidden_size", 4096),
        "num_heads": found["num_heads"],
        "num_key_heads": found["n_groups"],
        "state_dim": found["state_size"],
        "head_dim": found["head_dim"],
        "conv_size": found["conv_kernel"],
        "conv_bias": hf.flag("use_conv_bias", True),
        "norm_groups": found["n_groups"],
        "norm_eps": hf.number("layer_norm_epsilon", 1e-5),
    }


TABLE = Table(
    rules={
        ("w_gate", "w_v", "w_k", "w_q", "w_dt"): (
            "mixer.in_proj.weight",
            "(h v | h v | g k | g k | h) d -> d h v, d h v, d g k, d g k, d h",
        ),
        ("w_v_conv", "w_k_conv", "w_q_conv"): (
            "mixer.conv1d.weight",
            "(h v | g k | g k) a x -> (a x) h v, (a x) g k, (a x) g k",
        ),
        ("b_v_conv", "b_k_conv", "b_q_conv"): ("mixer.conv1d.bias", "(h v | g k | g k) -> h v, g k, g k"),
        "dt_bias": ("mixer.dt_bias", "h -> h"),
        "a_log": ("mixer.A_log", "h -> h"),
        "skip": ("mixer.D", "h -> h"),
        "w_norm": ("mixer.norm.weight", "(h v) -> h v"),
        "w_o": ("mixer.out_proj.weight", "o (h v) -> h v o"),
    },
    letters={
        "d_model": "d",
        "num_heads": "h",
        "num_key_heads": "g",
        "state_dim": "k",
        "head_dim": "v",
        "conv_size": "x",
    },
    flags={"conv_bias": ("b_v_conv", "b_k_conv", "b_q_conv")},
    not_in_weights=("form", "chunk_size", "norm_eps", "norm_groups"),
    fixed={"use_norm": True},
    constants={"a": 1},
)
LAYOUT = Layout(
    origin="transformers: Mamba2Model and the models that keep its names",
    prefixes=("backbone.layers.{layer}.", "layers.{layer}."),
    tables={"mamba2": TABLE},
    ignored=("norm.weight",),
    elsewhere=(
        "backbone.layers.*", "backbone.embeddings.weight", "backbone.norm_f.weight", "layers.*", "embeddings.weight",
        "norm_f.weight", "lm_head.weight",
    ),
    metadata={"format": "pt"},
    model_types=("mamba2",),
    table_and_fields=table_and_fields,
)  # fmt: skip
