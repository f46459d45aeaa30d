"""Gemma 2 as `transformers` names it: capped scores, a scale of its own, and a window in every other layer."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned, window
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`Gemma2Config`: the projections share one flag for their biases."""
    stated.only("use_bidirectional_attention", False)
    own = common(stated, 50.0) | turned(stated, stated.integer("head_dim", 256))
    # A window of the same number of tokens stands in the first files under two names.
    stated.only("sliding_window_size", stated.get("sliding_window"))
    return "decoder", own | (window(stated, 4096) if kind(stated, layer, 2) == "sliding_attention" else {})


def common(stated: Stated, cap: float | None) -> dict[str, Any]:
    """What Gemma 2 and 3 state alike.

    Args:
        stated: the model's fields.
        cap: what scores are capped with where the file does not say.
    """
    bias = stated.flag("attention_bias", False)
    own = sizes(stated, kv_heads=4, head_dim=256) | {"qkv_bias": bias, "output_bias": bias}
    own["scale"] = stated.number("query_pre_attn_scalar", 256) ** -0.5
    stated.skip("final_logit_softcapping", "cache_implementation", "sliding_window")
    capped = not stated.null("attn_logit_softcapping") and ("attn_logit_softcapping" in stated or cap is not None)
    return own | ({"softcap": stated.number("attn_logit_softcapping", cap)} if capped else {})


def kind(stated: Stated, layer: int, every: int) -> str:
    """The type of a layer: where the file has none, all have a window but each last one of so many."""

    def otherwise(n: int) -> str:
        return "sliding_attention" if (n + 1) % every else "full_attention"

    return stated.layer_type(layer, otherwise, "sliding_attention", "full_attention")


BIASES = ("qkv_bias", "output_bias")
TABLE = table(flags=BIASES, free=("scale", "softcap", "window"))
IGNORED = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
LAYOUT = family("Gemma2Model", config, {"decoder": TABLE}, model_types=("gemma2",), ignored=IGNORED)
