"""Gemma 3's text model as `transformers` names it: normed queries and keys, and faster turns within windows."""

from typing import Any

from attn_np.weights.layouts._decoder import family, table, turned, window
from attn_np.weights.layouts._stated import Stated
from attn_np.weights.layouts.gemma2 import BIASES, IGNORED, common, kind
from attn_np.weights.layouts.qwen3 import TABLE as NORMED


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`Gemma3TextConfig`: norms keep their weights less 1."""
    stated.only("use_bidirectional_attention", False)
    if "attn_logit_softcapping" in stated:
        stated.refuse("attn_logit_softcapping", "none, as this family has the field and does not read it")
    own = common(stated, None) | {"norm": "rms", "norm_offset": 1.0, "norm_eps": stated.number("rms_norm_eps", 1e-6)}
    # The library writes down under a second name what it took the layers' types from.
    stated.skip("_sliding_window_pattern")
    which = kind(stated, layer, stated.integer("sliding_window_pattern", 6))
    own |= positions(stated, own["head_dim"], which)
    return "decoder", own | (window(stated, 4096) if which == "sliding_attention" else {})


def positions(stated: Stated, head_dim: int, which: str) -> dict[str, Any]:
    """The fields of rotary positions: older files name the base of windows apart, and scale the other layers alone."""
    if "rope_parameters" in stated:
        types = stated.inner("rope_parameters")
        if which not in types:
            types.refuse(which, "the positions of such layers")
        types.inner(which).number("rope_theta")
        stated.skip("rope_local_base_freq")
        return turned(stated, head_dim, kind=which)
    if which == "sliding_attention":
        stated.skip("rope_theta", "rope_scaling")
        return {"rope_base": stated.number("rope_local_base_freq", 10000.0)}
    stated.skip("rope_local_base_freq")
    return turned(stated, head_dim, base=1000000.0)


TABLE = table(
    rules={names: NORMED.rules[names] for names in ("w_q_norm", "w_k_norm")},
    flags=BIASES,
    free=("scale", "window", "norm_eps"),
    fixed={"norm": "rms", "norm_offset": 1.0},
)
LAYOUT = family("Gemma3TextModel", config, {"decoder": TABLE}, model_types=("gemma3_text",), ignored=IGNORED)
