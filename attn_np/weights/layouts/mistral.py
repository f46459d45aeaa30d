"""Mistral as `transformers` names it: Llama without biases, and a window in every layer unless the file says null."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned, window
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`MistralConfig`."""
    own = sizes(stated, kv_heads=8)
    return "decoder", own | turned(stated, own["head_dim"]) | window(stated, 4096)


LAYOUT = family("MistralModel", config, {"decoder": table(free=("window",))}, model_types=("mistral",))
