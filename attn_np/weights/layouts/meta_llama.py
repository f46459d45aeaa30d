"""Llama as Meta's own files name it, and Mistral's that do: `params.json` beside `consolidated.safetensors`.

Neighbouring dimensions are rotated together: the rows of queries and keys stand in another order than in the files of
`transformers`.
"""

from typing import Any

from attn_np.weights._errors import ConfigMismatchError
from attn_np.weights.layouts._base import Layout
from attn_np.weights.layouts._decoder import sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig

MODEL_TYPE = "meta_llama"  # params.json says none


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `params.json`.

    Without `rope_theta` the base is that of Llama 1 and 2; in Mistral's files, which state `head_dim`, that of
    Mistral's code: 1e6, or 1e4 with a sliding window.
    """
    hf.check_layer("n_layers", layer)
    hf.only("use_biases", False)
    hf.skip("multiple_of", "ffn_dim_multiplier", "norm_eps", "hidden_dim", "max_seq_len", "max_batch_size", "moe")
    hf.skip("tied_embeddings", "vision_encoder")
    width, heads = hf.integer("dim"), hf.integer("n_heads")
    fields: dict[str, Any] = {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": hf.integer("n_kv_heads", heads),
        "head_dim": hf.integer("head_dim", width // heads),
        "rope_layout": "interleaved",
    }
    window = sliding_window_field(hf)
    base = 1e6 if "head_dim" in hf and window.get("window") is None else 1e4
    return "decoder", fields | scaled(hf) | window | {"rope_base": hf.number("rope_theta", base)}


def scaled(hf: HFConfig) -> dict[str, Any]:
    """Our fields of positions beyond the lengths in training, from Llama 3.1 on.

    Raises:
        ConfigMismatchError: they are scaled, and the file does not say by what factor, as Meta's code says it.
    """
    if not hf.flag("use_scaled_rope", False):
        return {}
    if "rope_scaling_factor" not in hf:
        fix = "write it into a copy of this file: 8 for Llama 3.1 and 3.3, 32 for Llama 3.2"
        raise ConfigMismatchError(hf.path, "rope_scaling_factor", "this field, as use_scaled_rope is on", "none", fix)
    return {
        "rope_scaling": "llama3",
        "rope_scaling_factor": hf.number("rope_scaling_factor"),
        "low_freq_factor": hf.number("low_freq_factor", 1.0),
        "high_freq_factor": hf.number("high_freq_factor", 4.0),
        "original_max_positions": hf.integer("original_max_position_embeddings", 8192),
    }


NAMES = {"self_attn": "attention", "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
LAYOUT = Layout(
    origin="Meta: Llama's own files, and Mistral's",
    prefixes=("layers.{layer}.",),
    tables={"decoder": table(not_in_weights=("window",), fixed={"rope_layout": "interleaved"}, names=NAMES)},
    ignored=("attention.inner_attention.rope.freqs", "attention_norm.weight", "ffn_norm.weight", "feed_forward.*"),
    elsewhere=("tok_embeddings.weight", "norm.weight", "output.weight", "rope.freqs", "layers.*"),
    model_types=(MODEL_TYPE,),
    table_and_fields=table_and_fields,
)
