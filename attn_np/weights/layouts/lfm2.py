"""LFM 2 as `transformers` names it: of its layers, those that attend, with norms of queries and keys."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `Lfm2Config`: a layer attends if `full_attn_idxs` or `layer_types` says so."""
    hf.skip("conv_bias", "conv_L_cache", "conv_dim", "conv_dim_out", "conv_use_xavier_init", *BLOCK, "use_expert_bias")
    hf.skip("num_dense_layers")
    attending = hf.get("full_attn_idxs")
    default = "conv" if isinstance(attending, list) and layer not in attending else "full_attention"
    if hf.layer_type(layer, lambda n: default, "conv", "full_attention") == "conv":
        words = f"'full_attention' for layer {layer}, as convolutions are not read from this type"
        hf.refuse_layer("layer_types" if "layer_types" in hf else "full_attn_idxs", words, "conv")
    fields: dict[str, Any] = sizes(hf, kv_heads=8) | {"norm": "rms", "norm_eps": hf.number("norm_eps", 1e-5)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"], base=1000000.0)


BLOCK = tuple(
    f"block_{name}"
    for name in (
        "dim", "ff_dim", "ffn_dim_multiplier", "mlp_init_scale", "multiple_of", "auto_adjust_ff_dim", "norm_eps",
        "out_init_scale", "use_swiglu", "use_xavier_init",
    )
)  # fmt: skip
TABLE = table(
    rules={
        "w_q_norm": ("self_attn.q_layernorm.weight", "k -> k"),
        "w_k_norm": ("self_attn.k_layernorm.weight", "k -> k"),
    },
    not_in_weights=("norm_eps",),
    fixed={"norm": "rms"},
    names={"o_proj": "out_proj"},
)
LAYOUT = family(
    "Lfm2Model",
    table_and_fields,
    {"decoder": TABLE},
    model_types=("lfm2",),
    ignored=("operator_norm.weight", "ffn_norm.weight", "feed_forward.*"),
    elsewhere=("model.embedding_norm.weight", "embedding_norm.weight"),
)
