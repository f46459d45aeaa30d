"""Phi-3 and Phi-4 as `transformers` names them: queries, keys and values in one projection, and factors for length."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, window
from attn_np.weights.layouts._stated import Stated, rotary


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`Phi3Config`: a part of a head may turn, and no kind of scaling but one is read as what it is called."""
    stated.only("attention_bias", False)
    stated.only("full_attn_mod", 1)
    stated.only("interpolate_factor", 1)
    stated.skip("lm_head_bias", "original_max_position_embeddings")
    own = sizes(stated)
    turning = rotary(stated, own["head_dim"])
    if turning.get("scaling", "longrope") != "longrope":
        stated.refuse("rope_scaling", "none or 'longrope', what these models are", turning["scaling"])
    return "decoder", own | turning | window(stated)


PARTS = "(h k | g k | g v) d -> d h k, d g k, d g v"
TABLE = table(rules={("w_q", "w_k", "w_v"): ("self_attn.qkv_proj.weight", PARTS)}, free=("window",))
LAYOUT = family("Phi3Model", config, {"decoder": TABLE}, model_types=("phi3",))
