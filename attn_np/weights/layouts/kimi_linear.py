"""Kimi Linear as `transformers` names it: layers of Kimi delta attention, and of latent attention without positions.

The names are those of the published files, which the library writes too; a model in memory has others.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._decoder import family, skip_rotary
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.deepseek_v3 import DIRECT_QUERIES, LATENT_QUERIES, MIXTURE


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `KimiLinearConfig`, by the layer's type."""
    hf.only("mla_use_nope", True)
    hf.skip(*MIXTURE, *OTHER_FIELDS)
    skip_rotary(hf)
    delta = delta_fields(hf)
    heads, bias = hf.integer("num_attention_heads", 32), hf.flag("attention_bias", False)
    widths = {ours: hf.integer(theirs, default) for ours, (theirs, default) in WIDTHS.items()}
    q_rank = {} if "q_lora_rank" not in hf else {"q_rank": hf.integer("q_lora_rank")}
    if kind(hf, layer) == "linear_attention":
        hf.only("hidden_act", "silu")  # of the convolutions as well
        hf.skip("num_key_value_heads")
        return "kda", delta
    hf.only("num_key_value_heads", heads)
    fields = {"num_heads": heads, "use_bias": bias, "causal": True, "rope_base": None}
    return "queries of a latent" if q_rank else "mla", fields | widths | q_rank


def delta_fields(hf: HFConfig) -> dict[str, Any]:
    """Our fields of a layer of Kimi delta attention; the published files have its sizes in an object."""
    linear_config = hf.nested("linear_attn_config")
    linear_config.skip("full_attn_layers", "kda_layers")
    sizes = {}
    for ours, (published, theirs, default) in LINEAR.items():
        sizes[ours] = linear_config.integer(published, hf.integer(theirs, default))
    eps = {"norm_eps": hf.number("rms_norm_eps", 1e-5), "qk_norm_eps": 1e-6}
    return {"d_model": hf.integer("hidden_size", 2304)} | sizes | eps


def kind(hf: HFConfig, layer: int) -> str:
    """The type of a layer: an entry of `layer_types`, or by the lists of the published files, which count from 1."""
    lists = hf.nested("linear_attn_config")

    def default(n: int) -> str:
        if "full_attn_layers" not in lists or "kda_layers" not in lists:
            return "full_attention" if n and n % 4 == 0 else "linear_attention"
        list_names = {name for name in ("full_attn_layers", "kda_layers") if n + 1 in lists.get(name)}
        if len(list_names) != 1:
            lists.refuse("kda_layers", f"layer {n}, as number {n + 1}, in one of the two lists", sorted(list_names))
        return "full_attention" if "full_attn_layers" in list_names else "linear_attention"

    return hf.layer_type(layer, default, "linear_attention", "full_attention")


OTHER_FIELDS = (
    "head_dim", "qk_head_dim", "mlp_layer_types",
    "model_max_length", "moe_renormalize", "moe_router_activation_func", "num_expert_group", "num_shared_experts",
    "num_experts_per_token", "use_grouped_topk",
)  # fmt: skip
LINEAR = {
    "num_heads": ("num_heads", "linear_num_heads", 32),
    "head_dim": ("head_dim", "linear_head_dim", 128),
    "conv_size": ("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
}
WIDTHS = {
    "d_model": ("hidden_size", 2304),
    "kv_rank": ("kv_lora_rank", 512),
    "nope_dim": ("qk_nope_head_dim", 128),
    "rope_dim": ("qk_rope_head_dim", 64),
    "value_head_dim": ("v_head_dim", 128),
}
DELTA = Table(
    rules={
        "w_q": ("self_attn.q_proj.weight", "(g k) d -> d g k"),
        "w_k": ("self_attn.k_proj.weight", "(g k) d -> d g k"),
        "w_v": ("self_attn.v_proj.weight", "(h v) d -> d h v"),
        "w_q_conv": ("self_attn.q_conv1d.weight", "(g k) a x -> (a x) g k"),
        "w_k_conv": ("self_attn.k_conv1d.weight", "(g k) a x -> (a x) g k"),
        "w_v_conv": ("self_attn.v_conv1d.weight", "(h v) a x -> (a x) h v"),
        "w_beta": ("self_attn.b_proj.weight", "h d -> d h"),
        "w_a_down": ("self_attn.f_a_proj.weight", "z d -> d z"),
        "w_a_up": ("self_attn.f_b_proj.weight", "(h k) z -> z h k"),
        "a_log": ("self_attn.A_log", "a m h n -> (a m h n)"),
        "dt_bias": ("self_attn.dt_bias", "(h k) -> h k"),
        "w_gate_down": ("self_attn.g_a_proj.weight", "z d -> d z"),
        "w_gate_up": ("self_attn.g_b_proj.weight", "(h v) z -> z h v"),
        "b_gate": ("self_attn.g_b_proj.bias", "(h v) -> h v"),
        "w_norm": ("self_attn.o_norm.weight", "v -> v"),
        "w_o": ("self_attn.o_proj.weight", "o (h v) -> h v o"),
    },
    letters={
        "d_model": "d",
        "num_heads": "h",
        "head_dim": "k",
        "value_head_dim": "v",
        "rank": "z",
        "conv_size": "x",
    },
    not_in_weights=("form", "chunk_size", "norm_eps", "qk_norm_eps"),
    constants={"a": 1, "m": 1, "n": 1},
    absent=("self_attn.g_b_proj.bias",),
)
UNROTATED: dict[str, Any] = {"not_in_weights": ("absorbed", "scale"), "fixed": {"causal": True, "rope_base": None}}
TABLES = {
    "kda": DELTA,
    "mla": replace(DIRECT_QUERIES, **UNROTATED),
    "queries of a latent": replace(LATENT_QUERIES, **UNROTATED),
}
LAYOUT = replace(
    family("KimiLinearModel", table_and_fields, TABLES, model_types=("kimi_linear",), ignored=("block_sparse_moe.*",)),
    variant_from_tensors=True,
)
