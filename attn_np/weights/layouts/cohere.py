"""Cohere's Command R as `transformers` names it: neighbours turn, and queries and keys may be normed before."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`CohereConfig`: the projections share one flag for their biases; each head has its own weight of the norm."""
    own, bias = sizes(stated), stated.flag("attention_bias", False)
    stated.skip("logit_scale")
    own |= {"qkv_bias": bias, "output_bias": bias, "layout": "interleaved"}
    own |= turned(stated, own["head_dim"], base=500000.0)
    if not stated.flag("use_qk_norm", False):
        return "decoder", own
    return "normed", own | NORM | {"norm_eps": stated.number("layer_norm_eps", 1e-5)}


NORM = {"norm": "layer", "norm_weight": "own"}
BIASES = ("qkv_bias", "output_bias")
NORMED = table(
    rules={"w_q_all": ("self_attn.q_norm.weight", "h k -> h k"), "w_k_all": ("self_attn.k_norm.weight", "g k -> g k")},
    flags=BIASES,
    free=("norm_eps",),
    fixed={"layout": "interleaved"} | NORM,
    variant="decoder",
)
# The normed ones first: a file of theirs has all keys of the others.
TABLES = {"normed": NORMED, "decoder": table(flags=BIASES, fixed={"layout": "interleaved"})}
LAYOUT = family("CohereModel", config, TABLES, model_types=("cohere",))
