"""DeepSeek-V3 and R1 as `transformers` names them: keys and values from one latent, queries from another or none.

One projection makes the latent and the key that all heads share, and one makes the keys and values of the latent, head
by head.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, whole_head_rotary, yarn_scale
from attn_np.weights.layouts.llama import LAYOUT as LLAMA


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DeepseekV3Config`: `head_dim` is its rotary part; the norms have a fixed epsilon."""
    heads = hf.integer("num_attention_heads")
    hf.only("num_key_value_heads", heads)
    hf.skip("head_dim", "qk_head_dim", *MIXTURE)
    nope_dim, rope_dim = hf.integer("qk_nope_head_dim", 128), hf.integer("qk_rope_head_dim", 64)
    fields = {
        "d_model": hf.integer("hidden_size"),
        "num_heads": heads,
        "kv_rank": hf.integer("kv_lora_rank", 512),
        "nope_dim": nope_dim,
        "rope_dim": rope_dim,
        "value_head_dim": hf.integer("v_head_dim", 128),
        "causal": True,
        "use_bias": hf.flag("attention_bias", False),
    }
    fields |= whole_head_rotary(hf, rope_dim) | score_scale(hf, nope_dim + rope_dim)
    fields |= {} if hf.flag("rope_interleave", True) else {"rope_layout": "half"}
    if hf.is_null("q_lora_rank"):
        return "mla", fields
    return "queries of a latent", fields | {"q_rank": hf.integer("q_lora_rank", 1536)}


# Fields of the experts, and of multi-token prediction.
MIXTURE = (
    "n_group", "topk_group", "topk_method", "n_routed_experts", "num_local_experts", "n_shared_experts",
    "num_experts_per_tok", "moe_intermediate_size", "moe_layer_freq", "first_k_dense_replace", "norm_topk_prob",
    "routed_scaling_factor", "scoring_func", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
    "num_mtp_layers", "output_router_logits",
)  # fmt: skip


def score_scale(hf: HFConfig, width: int) -> dict[str, Any]:
    """Our field for the scale, which YaRN raises by the square of `mscale_all_dim`'s factor; no field without it."""
    rope = hf.nested("rope_parameters" if "rope_parameters" in hf else "rope_scaling")
    mscale = rope.number("mscale_all_dim", 0.0)
    if not mscale or rope.get("rope_type", rope.get("type", "default")) == "default":
        return {}
    return {"scale": width**-0.5 * yarn_scale(rope.number("factor"), mscale) ** 2}


DIRECT_QUERIES = Table(
    rules={
        "w_q": ("self_attn.q_proj.weight", "(h k) e -> e h k"),
        ("w_dkv", "w_k_rot"): ("self_attn.kv_a_proj_with_mqa.weight", "(z | y) d -> d z, d y"),
        "w_kv_norm": ("self_attn.kv_a_layernorm.weight", "z -> z"),
        ("w_uk", "w_uv"): ("self_attn.kv_b_proj.weight", "(h (q | v)) z -> z h q, z h v"),
        "w_o": ("self_attn.o_proj.weight", "o (h v) -> h v o"),
        ("b_dkv", "b_k_rot"): ("self_attn.kv_a_proj_with_mqa.bias", "(z | y) -> z, y"),
        "b_o": ("self_attn.o_proj.bias", "o -> o"),
    },
    flags={"use_bias": ("b_dkv", "b_k_rot", "b_o")},
    letters={
        "d_model": "d",
        "num_heads": "h",
        "kv_rank": "z",
        "nope_dim": "q",
        "rope_dim": "y",
        "value_head_dim": "v",
    },
    # The weights are the same for each: which dimensions are rotated together, only `config.json` says.
    not_in_weights=("absorbed", "scale", "rope_layout", *(name for name in ROTARY_FIELDS if name != "rotary_dim")),
    fixed={"causal": True},
)
LATENT_QUERIES = Table(
    rules={
        **DIRECT_QUERIES.rules,
        "w_dq": ("self_attn.q_a_proj.weight", "e d -> d e"),
        "w_q_norm": ("self_attn.q_a_layernorm.weight", "e -> e"),
        "w_q": ("self_attn.q_b_proj.weight", "(h k) e -> e h k"),
        "b_dq": ("self_attn.q_a_proj.bias", "e -> e"),
    },
    flags={"use_bias": ("b_dq", "b_dkv", "b_k_rot", "b_o")},
    letters={**DIRECT_QUERIES.letters, "q_rank": "e"},
    not_in_weights=DIRECT_QUERIES.not_in_weights,
    fixed=DIRECT_QUERIES.fixed,
    variant="mla",
)

LAYOUT = Layout(
    origin="transformers: DeepseekV3Model and the models that keep its names",
    prefixes=LLAMA.prefixes,
    tables={"mla": DIRECT_QUERIES, "queries of a latent": LATENT_QUERIES},
    ignored=LLAMA.ignored,
    elsewhere=LLAMA.elsewhere,
    metadata=LLAMA.metadata,
    model_types=("deepseek_v3",),
    table_and_fields=table_and_fields,
)
