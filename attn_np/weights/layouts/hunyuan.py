"""Hunyuan as `transformers` names it: queries and keys of each head are normed after they are rotated."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary

# Fields of published files that the library does not read: other models of the family have these parts.
OTHER_PARTS = (
    "cla_share_factor", "norm_type", "mlp_bias", "add_classification_head", "class_num", "pool_type", "mask_init_id",
    "dense_list", "enable_lm_head_fp32", "eod_token_id", "im_start_id", "im_end_id", "im_newline_id", "sep_token_id",
    "text_start_id", "text_end_id", "image_token_id", "video_start_id", "video_end_id", "org_vocab_size",
    "moe_topk", "num_shared_expert", "moe_drop_tokens", "moe_random_routing_dropped_token", "moe_layer_num_skipped",
    "use_mixed_mlp_moe", "group_limited_greedy", "capacity_factor",
)  # fmt: skip


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `HunYuanDenseV1Config` or a `HunYuanMoEV1Config`."""
    hf.skip(*OTHER_PARTS)
    for key, value in {"use_qk_norm": True, "use_rotary_pos_emb": True, "use_cla": False}.items():
        hf.only(key, value)
    hf.only("position_embedding_xdrope", False)
    fields: dict[str, Any] = sizes(hf) | biases(hf) | NORM | {"norm_eps": hf.number("rms_norm_eps", 1e-5)}
    hf.only("attention_head_dim", fields["head_dim"])
    return "decoder", fields | positions(hf, fields["head_dim"])


def positions(hf: HFConfig, head_dim: int) -> dict[str, Any]:
    """Our fields of rotary positions: with an `alpha` the base is a larger one for every length, whatever the type."""
    rope = hf.nested("rope_parameters" if "rope_parameters" in hf else "rope_scaling")
    if rope.get("alpha") is None or rope.get("rope_type", rope.get("type")) != "dynamic":
        return whole_head_rotary(hf, head_dim)
    hf.skip("max_position_embeddings")
    rope.skip("type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    base = rope.number("rope_theta", hf.number("rope_theta", 10000.0))
    return {"rope_base": base * rope.number("alpha") ** (head_dim / (head_dim - 2))}


NORM = {"norm": "rms", "norm_position": "after_rotation"}
TABLE = table(
    rules={
        "w_q_norm": ("self_attn.query_layernorm.weight", "k -> k"),
        "w_k_norm": ("self_attn.key_layernorm.weight", "k -> k"),
    },
    flags=BIAS_FLAGS,
    not_in_weights=("norm_eps",),
    fixed=NORM,
)
LAYOUT = family(
    "HunYuanDenseV1Model",
    table_and_fields,
    {"decoder": TABLE},
    model_types=("hunyuan_v1_dense", "hunyuan_v1_moe"),
)
