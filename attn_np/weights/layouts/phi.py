"""Phi-1 and Phi-2 as `transformers` names them: biases everywhere, half of each head is rotated, and norms for some."""

from typing import Any

from attn_np.weights.layouts._base import Names
from attn_np.weights.layouts._decoder import BIAS_FLAGS, NORM_BIAS_KEYS, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `PhiConfig`."""
    fields: dict[str, Any] = sizes(hf) | dict.fromkeys(BIAS_FLAGS, True)
    fields |= rotary(hf, fields["head_dim"], share=0.5)
    if not hf.flag("qk_layernorm", False):
        return "decoder", fields
    return "normed", fields | NORM | {"norm_eps": hf.number("layer_norm_eps", 1e-5)}


NORM = {"norm": "layer", "norm_bias": True}
NORM_RULES: dict[Names, tuple[Names, str]] = {
    "w_q_norm": ("self_attn.q_layernorm.weight", "k -> k"),
    "w_k_norm": ("self_attn.k_layernorm.weight", "k -> k"),
    "b_q_norm": ("self_attn.q_layernorm.bias", "k -> k"),
    "b_k_norm": ("self_attn.k_layernorm.bias", "k -> k"),
}
# The normed table first: its files have all keys of the other.
TABLES = {
    "normed": table(
        rules=NORM_RULES,
        not_in_weights=("norm_eps",),
        fixed=dict.fromkeys(BIAS_FLAGS, True) | NORM,
        names={"o_proj": "dense"},
        variant="decoder",
    ),
    "decoder": table(fixed=dict.fromkeys(BIAS_FLAGS, True), names={"o_proj": "dense"}),
}
LAYOUT = family(
    "PhiModel",
    table_and_fields,
    TABLES,
    model_types=("phi",),
    ignored=NORM_BIAS_KEYS,
    elsewhere=("model.final_layernorm.*", "final_layernorm.*", "lm_head.bias"),
)
