"""Persimmon as `transformers` names it: GPT-NeoX's one matrix, and norms of queries and keys with biases."""

from typing import Any

from attn_np.weights.layouts._base import Names, Table
from attn_np.weights.layouts._decoder import NORM_BIAS_KEYS, family
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, rotary
from attn_np.weights.layouts.phi import NORM, NORM_RULES


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `PersimmonConfig`: by default half of each head is rotated, after a norm."""
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    hf.only("num_key_value_heads", heads)  # Adept's own files have it
    fields: dict[str, Any] = {"d_model": width, "num_heads": heads} | BIAS_FIELDS
    fields |= rotary(hf, width // heads, share=0.5)
    if not hf.flag("qk_layernorm", True):
        return "decoder", fields
    return "normed", fields | NORM | {"norm_eps": hf.number("layer_norm_eps", 1e-5)}


BIAS_FIELDS = {"qkv_bias": True, "output_bias": True}
RULES: dict[Names, tuple[Names, str]] = {
    ("w_q", "w_k", "w_v"): ("self_attn.query_key_value.weight", "(h p k) d -> p d h k"),
    ("b_q", "b_k", "b_v"): ("self_attn.query_key_value.bias", "(h p k) -> p h k"),
    "w_o": ("self_attn.dense.weight", "o (h v) -> h v o"),
    "b_o": ("self_attn.dense.bias", "o -> o"),
}
LETTERS = {"d_model": "d", "num_heads": "h"}
# The normed table first: its files have all keys of the other.
TABLES = {
    "normed": Table(
        rules=RULES | NORM_RULES,
        letters=LETTERS,
        not_in_weights=(*ROTARY_FIELDS, "norm_eps"),
        fixed=BIAS_FIELDS | NORM,
        variant="decoder",
    ),
    "decoder": Table(rules=RULES, letters=LETTERS, not_in_weights=ROTARY_FIELDS, fixed=BIAS_FIELDS),
}
LAYOUT = family(
    "PersimmonModel",
    table_and_fields,
    TABLES,
    model_types=("persimmon",),
    ignored=NORM_BIAS_KEYS,
    elsewhere=("model.final_layernorm.*", "final_layernorm.*"),
)
