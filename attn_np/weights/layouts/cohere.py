"""Cohere's Command R as `transformers` names it: interleaved rotary pairs, and optional norms of queries and keys."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `CohereConfig`: one flag for all biases; each head has its own norm weight."""
    fields, bias = sizes(hf), hf.flag("attention_bias", False)
    hf.skip("logit_scale")
    fields |= {"qkv_bias": bias, "output_bias": bias, "rope_layout": "interleaved"}
    fields |= whole_head_rotary(hf, fields["head_dim"], base=500000.0)
    if not hf.flag("use_qk_norm", False):
        return "decoder", fields
    return "normed", fields | NORM | {"norm_eps": hf.number("layer_norm_eps", 1e-5)}


NORM = {"norm": "layer", "norm_weight": "own"}
NORMED = table(
    rules={
        "w_q_norm_heads": ("self_attn.q_norm.weight", "h k -> h k"),
        "w_k_norm_heads": ("self_attn.k_norm.weight", "g k -> g k"),
    },
    flags=BIAS_FLAGS,
    not_in_weights=("norm_eps",),
    fixed={"rope_layout": "interleaved"} | NORM,
    variant="decoder",
)
# The normed table first: its files have all keys of the other.
TABLES = {"normed": NORMED, "decoder": table(flags=BIAS_FLAGS, fixed={"rope_layout": "interleaved"})}
LAYOUT = family("CohereModel", table_and_fields, TABLES, model_types=("cohere",))
