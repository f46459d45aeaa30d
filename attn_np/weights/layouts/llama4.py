"""Llama 4's text model as `transformers` names it: layers that rotate, within chunks, and layers that do neither.

The former norm each head of queries and keys without a weight. The library norms after the rotation, which leaves the
lengths that are normed as they are. The latter multiply queries by a factor that grows with the
position.
"""

from typing import Any

from attn_np import contract
from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, skip_rotary, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.smollm3 import layer_rotates


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Llama4TextConfig`: by default every fourth layer does not rotate."""
    hf.skip("intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step", "cache_implementation")
    fields = sizes(hf, kv_heads=8, head_dim=128) | biases(hf) | FIXED
    rotates, eps = layer_rotates(hf, layer), hf.number("rms_norm_eps", 1e-5)
    normed, grows = hf.flag("use_qk_norm", True), hf.only("attn_temperature_tuning", True, False, 4)
    growth, interval = hf.number("attn_scale", 0.1), hf.integer("floor_scale", 8192)
    kinds = ("full_attention", "chunked_attention")
    chunked = hf.layer_type(layer, lambda n: kinds[layer_rotates(hf, n)], *kinds) == "chunked_attention"
    if chunked and hf.is_null("attention_chunk_size"):
        hf.refuse("attention_chunk_size", f"the size of chunks, for layer {layer}", None)
    chunk = hf.integer("attention_chunk_size", 8192)
    fields |= {"chunk_size": chunk} if chunked else {}
    if rotates:
        fields |= whole_head_rotary(hf, fields["head_dim"], base=500000.0)
        return "decoder", normed_before_rotation(fields, eps) if normed else fields
    grown = {"temperature_growth": growth, "temperature_interval": interval}
    return "decoder", fields | skip_rotary(hf) | (grown if grows or grows is None else {})


def normed_before_rotation(fields: dict[str, Any], eps: float) -> dict[str, Any]:
    """The fields of a layer that norms and then rotates, as ours do, for one that rotates and then norms.

    The norm takes the factor on cosines and sines away, but for its epsilon: x f / sqrt(mean(f^2 x^2) + eps) is
    x / sqrt(mean(x^2) + eps / f^2).
    """
    factor = contract.config("decoder", **fields).cos_sin_factor()  # type: ignore[attr-defined]
    if factor != 1:
        fields = fields | {"attention_factor": 1.0}
    return fields | {"norm": "rms", "norm_eps": eps / factor**2}


FIXED: dict[str, Any] = {"rope_layout": "interleaved", "norm_weight": None}
NOT_IN_WEIGHTS = ("norm", "norm_eps", "chunk_size", "temperature_growth", "temperature_interval")
TABLE = table(flags=BIAS_FLAGS, not_in_weights=NOT_IN_WEIGHTS, fixed=FIXED)
LAYOUT = family(
    "Llama4TextModel", table_and_fields, {"decoder": TABLE}, model_types=("llama4_text",), ignored=("feed_forward.*",)
)
