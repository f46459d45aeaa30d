"""Nemotron-H as `transformers` names it: of its layers, those that attend, which do not rotate."""

from typing import Any

from attn_np.weights.layouts._base import Layout
from attn_np.weights.layouts._decoder import sizes, table
from attn_np.weights.layouts._hf_config import HFConfig

LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `NemotronHConfig`; the first files have a letter for each layer's kind."""
    hf.skip(*OTHER_FIELDS)
    kinds = hf.get("layers_block_type")
    pattern = hf.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [LETTERS.get(letter, letter) for letter in pattern]
    kind = kinds[layer] if isinstance(kinds, list) and layer < len(kinds) else kinds
    if kind not in ("full_attention", "attention"):
        expected = f"'full_attention' for layer {layer}, as other kinds are not read from this type"
        refuse = hf.refuse_layer if kind in ("mamba", *LETTERS.values()) else hf.refuse
        refuse("layers_block_type", expected, kind)
    hf.only("attention_bias", False)
    hf.only("sliding_window", None)
    return "decoder", sizes(hf, kv_heads=8, head_dim=128) | {"rope_base": None}


OTHER_FIELDS = (
    "num_logits_to_keep", "ssm_state_size", "conv_kernel", "expand", "time_step_min", "time_step_max",
    "time_step_limit", "time_step_floor", "use_conv_bias", "chunk_size", "mtp_layers_block_type", "use_bias",
    "residual_in_fp32", "rescale_prenorm_residual", "n_groups", "mamba_num_heads", "mamba_head_dim",
    "mamba_hidden_act", "mamba_proj_bias", "mamba_ssm_cache_dtype", "use_mamba_kernels", "mlp_hidden_act",
    "layer_norm_epsilon",    "attention_head_dim", "num_query_groups", "rope_theta", "partial_rotary_factor",
)  # fmt: skip
LAYOUT = Layout(
    origin="transformers: NemotronHModel",
    prefixes=("backbone.layers.{layer}.", "model.layers.{layer}.", "layers.{layer}."),
    tables={"decoder": table(fixed={"rope_base": None}, names={"self_attn": "mixer"})},
    ignored=("norm.weight",),
    elsewhere=("backbone.*", "model.*", "layers.*", "embeddings.weight", "norm_f.weight", "lm_head.weight", "mtp.*"),
    metadata={"format": "pt"},
    model_types=("nemotron_h",),
    table_and_fields=table_and_fields,
)
