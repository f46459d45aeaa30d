"""GLM-4.5 as `transformers` names it: half of each head is rotated, after a norm that some models have."""

from typing import Any

from attn_np.weights.layouts._base import Names
from attn_np.weights.layouts._decoder import family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary
from attn_np.weights.layouts.qwen3 import TABLE as QWEN3


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Glm4MoeConfig`: the output never has a bias."""
    fields: dict[str, Any] = sizes(hf, kv_heads=8) | {"qkv_bias": hf.flag("attention_bias", False)}
    fields |= rotary(hf, fields["head_dim"], share=0.5)
    if not hf.flag("use_qk_norm", False):
        return "decoder", fields
    return "normed", fields | {"norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-5)}


NORM_RULES: dict[Names, tuple[Names, str]] = {name: QWEN3.rules[name] for name in ("w_q_norm", "w_k_norm")}
# The normed table first: its files have all keys of the other.
TABLES = {
    "normed": table(
        rules=NORM_RULES, flags=("qkv_bias",), not_in_weights=("norm_eps",), fixed={"norm": "rms"}, variant="decoder"
    ),
    "decoder": table(flags=("qkv_bias",)),
}
LAYOUT = family("Glm4MoeModel", table_and_fields, TABLES, model_types=("glm4_moe",))
