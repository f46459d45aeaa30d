"""Llama as `transformers` names it, and the models that are Llama under another name.

`torch.nn.Linear` stores its weight as [out, in], with the heads in order along the projected side. The rows of queries
and keys are ordered for rotary pairs across the halves of a head, unlike in Meta's own files.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import ROTARY_FIELDS, HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `LlamaConfig`: the projections share one flag for their biases."""
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    bias = hf.flag("attention_bias", False)
    head_dim = hf.integer("head_dim", width // heads)
    return "decoder", {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": hf.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "qkv_bias": bias,
        "output_bias": bias,
        **whole_head_rotary(hf, head_dim),
    }


LAYOUT = Layout(
    origin="transformers: LlamaModel and the models that keep its names",
    prefixes=("model.layers.{layer}.", "layers.{layer}."),
    tables={
        "decoder": Table(
            rules={
                "w_q": ("self_attn.q_proj.weight", "(h k) d -> d h k"),
                "w_k": ("self_attn.k_proj.weight", "(g k) d -> d g k"),
                "w_v": ("self_attn.v_proj.weight", "(g v) d -> d g v"),
                "w_o": ("self_attn.o_proj.weight", "o (h v) -> h v o"),
                "b_q": ("self_attn.q_proj.bias", "(h k) -> h k"),
                "b_k": ("self_attn.k_proj.bias", "(g k) -> g k"),
                "b_v": ("self_attn.v_proj.bias", "(g v) -> g v"),
                "b_o": ("self_attn.o_proj.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h", "num_kv_heads": "g", "head_dim": "k"},
            flags={"qkv_bias": ("b_q", "b_k", "b_v"), "output_bias": ("b_o",)},
            not_in_weights=ROTARY_FIELDS,
        )
    },
    ignored=(
        "self_attn.rotary_emb.inv_freq",  # follows from the config
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "mlp.*",
    ),
    elsewhere=(
        "model.embed_tokens.weight",
        "model.layers.*",
        "model.norm.weight",
        "embed_tokens.weight",
        "layers.*",
        "norm.weight",
        "lm_head.weight",
        "score.weight",
        "classifier.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("llama", "arcee"),
    table_and_fields=table_and_fields,
)
