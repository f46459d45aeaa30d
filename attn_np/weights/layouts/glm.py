"""GLM-4 as `transformers` names it: interleaved pairs in half of each head, and no bias on the output."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GlmConfig` or a `Glm4Config`, whose attention is the same."""
    fields: dict[str, Any] = sizes(hf, kv_heads=2, head_dim=128) | {"qkv_bias": hf.flag("attention_bias", True)}
    return "decoder", fields | {"rope_layout": "interleaved"} | rotary(hf, fields["head_dim"], share=0.5)


TABLE = table(flags=("qkv_bias",), fixed={"rope_layout": "interleaved"})
IGNORED = ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")
LAYOUT = family("GlmModel", table_and_fields, {"decoder": TABLE}, model_types=("glm", "glm4"), ignored=IGNORED)
