"""Qwen 3 as `transformers` names it: queries and keys of each head are normed before they turn."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned
from attn_np.weights.layouts._stated import Stated
from attn_np.weights.layouts.qwen2 import sliding


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`Qwen3Config`: the projections share one flag for their biases."""
    own, bias = sizes(stated, kv_heads=32, head_dim=128), stated.flag("attention_bias", False)
    own |= {"qkv_bias": bias, "output_bias": bias, "norm": "rms", "norm_eps": stated.number("rms_norm_eps", 1e-6)}
    return "decoder", own | turned(stated, own["head_dim"]) | sliding(stated, layer)


TABLE = table(
    rules={"w_q_norm": ("self_attn.q_norm.weight", "k -> k"), "w_k_norm": ("self_attn.k_norm.weight", "k -> k")},
    flags=("qkv_bias", "output_bias"),
    free=("window", "norm_eps"),
    fixed={"norm": "rms"},
)
LAYOUT = family("Qwen3Model", config, {"decoder": TABLE}, model_types=("qwen3",))
