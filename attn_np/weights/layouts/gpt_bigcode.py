"""GPT BigCode as `transformers` names it: StarCoder and SantaCoder, one head of keys and values beside the queries'."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.gpt2 import LAYOUT as GPT2
from attn_np.weights.layouts.gpt2 import SUMMARY


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPTBigCodeConfig`: all heads share keys and values."""
    hf.check_layer("n_layer", layer)
    hf.only("add_cross_attention", False)
    hf.only("multi_query", True)  # without it the rows stand in another order, which the file's keys do not show
    hf.skip(
        "n_positions", "n_ctx", "n_inner", "activation_function", "attention_softmax_in_fp32", "num_key_value_heads"
    )
    # Of the published files; the model does not read them.
    hf.skip("scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input", "pre_allocate_kv_cache")
    hf.skip("max_sequence_length", "max_batch_size", "pad_key_length", *(f"summary_{name}" for name in SUMMARY))
    width, heads = hf.integer("n_embd"), hf.integer("n_head")
    fields = {"d_model": width, "num_heads": heads, "rope_base": None, "qkv_bias": True, "output_bias": True}
    fields |= {} if hf.flag("scale_attn_weights", True) else {"scale": 1.0}
    return "decoder", fields | {"num_kv_heads": 1}


FIXED = {"rope_base": None, "qkv_bias": True, "output_bias": True}
LAYOUT = Layout(
    origin="transformers: GPTBigCodeModel",
    prefixes=("transformer.h.{layer}.", "h.{layer}."),
    tables={
        "decoder": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("attn.c_attn.weight", "(h k | g k | g v) d -> d h k, d g k, d g v"),
                ("b_q", "b_k", "b_v"): ("attn.c_attn.bias", "(h k | g k | g v) -> h k, g k, g v"),
                "w_o": ("attn.c_proj.weight", "o (h v) -> h v o"),
                "b_o": ("attn.c_proj.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("scale",),
            fixed=FIXED | {"num_kv_heads": 1},
            constants={"g": 1},
        ),
    },
    ignored=GPT2.ignored,
    elsewhere=GPT2.elsewhere,
    metadata=GPT2.metadata,
    model_types=("gpt_bigcode",),
    table_and_fields=table_and_fields,
)
