"""Qwen 2 and 2.5 as `transformers` names them: biases on queries, keys and values, and a window in some layers."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned, window
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`Qwen2Config`."""
    own = sizes(stated, kv_heads=32)
    return "decoder", own | {"qkv_bias": True} | turned(stated, own["head_dim"]) | sliding(stated, layer)


def sliding(stated: Stated, layer: int) -> dict[str, Any]:
    """The window of a layer: of those from `max_window_layers` where no types are stated, and if it is used at all."""
    first, used = stated.integer("max_window_layers", 28), stated.flag("use_sliding_window", False)
    found = window(stated, 4096) if used else {}
    stated.skip("sliding_window")

    def otherwise(n: int) -> str:
        return "sliding_attention" if found and n >= first else "full_attention"

    kind = stated.layer_type(layer, otherwise, "sliding_attention", "full_attention")
    if kind == "full_attention":
        return {}
    return found or stated.refuse("sliding_window", f"a window for layer {layer}, with use_sliding_window", None)


TABLE = table(free=("window",), fixed={"qkv_bias": True})
LAYOUT = family("Qwen2Model", config, {"decoder": TABLE}, model_types=("qwen2",))
