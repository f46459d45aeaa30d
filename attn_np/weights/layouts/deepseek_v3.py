"""DeepSeek-V3 and R1 as `transformers` names them: keys and values out of one latent, queries out of another or none.

The latent and the key that all heads share are made by one projection, and so are keys and values of the latent, head
by head.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._decoder import turned
from attn_np.weights.layouts._stated import ROTARY, Stated, magnitude
from attn_np.weights.layouts.llama import LAYOUT as LLAMA


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`DeepseekV3Config`: `head_dim` is that of the part that turns; the norms have an epsilon of their own."""
    heads = stated.integer("num_attention_heads")
    stated.only("attention_bias", False)
    stated.only("num_key_value_heads", heads)
    # The tensors of a model that turns halves look the same, so that what is written could not be told apart.
    stated.only("rope_interleave", True)
    stated.skip(
        "head_dim", "qk_head_dim", "n_group", "topk_group", "topk_method", "n_routed_experts", "num_local_experts",
        "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_layer_freq", "first_k_dense_replace",
        "norm_topk_prob", "routed_scaling_factor", "scoring_func", "aux_loss_alpha", "seq_aux", "ep_size",
        "num_nextn_predict_layers", "num_mtp_layers", "output_router_logits",
    )  # fmt: skip
    nope, turning = stated.integer("qk_nope_head_dim", 128), stated.integer("qk_rope_head_dim", 64)
    own = {
        "d_model": stated.integer("hidden_size"),
        "num_heads": heads,
        "kv_rank": stated.integer("kv_lora_rank", 512),
        "nope_dim": nope,
        "rope_dim": turning,
        "value_head_dim": stated.integer("v_head_dim", 128),
        "causal": True,
    }
    own |= turned(stated, turning) | scaled(stated, nope + turning)
    if stated.null("q_lora_rank"):
        return "mla", own
    return "queries of a latent", own | {"q_rank": stated.integer("q_lora_rank", 1536)}


def scaled(stated: Stated, width: int) -> dict[str, Any]:
    """The scale, which grows with the square of what longer sentences raise: `mscale_all_dim`."""
    positions = stated.inner("rope_parameters" if "rope_parameters" in stated else "rope_scaling")
    by = positions.number("mscale_all_dim", 0.0)
    if not by or positions.get("rope_type", positions.get("type", "default")) == "default":
        return {}
    return {"scale": width**-0.5 * magnitude(positions.number("factor"), by) ** 2}


ALIKE = Table(
    rules={
        "w_q": ("self_attn.q_proj.weight", "(h k) e -> e h k"),
        ("w_dkv", "w_k_rot"): ("self_attn.kv_a_proj_with_mqa.weight", "(z | y) d -> d z, d y"),
        "w_kv_norm": ("self_attn.kv_a_layernorm.weight", "z -> z"),
        ("w_uk", "w_uv"): ("self_attn.kv_b_proj.weight", "(h (q | v)) z -> z h q, z h v"),
        "w_o": ("self_attn.o_proj.weight", "d (h v) -> h v d"),
    },
    sizes={
        "d_model": "d",
        "num_heads": "h",
        "kv_rank": "z",
        "nope_dim": "q",
        "rope_dim": "y",
        "value_head_dim": "v",
    },
    # The same weights serve either form.
    free=("absorbed", "scale", *(name for name in ROTARY if name != "rotary_dim")),
    fixed={"causal": True},
)
LATENT = Table(
    rules={
        **ALIKE.rules,
        "w_dq": ("self_attn.q_a_proj.weight", "e d -> d e"),
        "w_q_norm": ("self_attn.q_a_layernorm.weight", "e -> e"),
        "w_q": ("self_attn.q_b_proj.weight", "(h k) e -> e h k"),
    },
    sizes={**ALIKE.sizes, "q_rank": "e"},
    free=ALIKE.free,
    fixed=ALIKE.fixed,
    variant="mla",
)

LAYOUT = Layout(
    origin="transformers: DeepseekV3Model and the models that keep its names",
    prefixes=LLAMA.prefixes,
    tables={"mla": ALIKE, "queries of a latent": LATENT},
    ignored=LLAMA.ignored,
    elsewhere=LLAMA.elsewhere,
    metadata=LLAMA.metadata,
    model_types=("deepseek_v3",),
    config=config,
)
