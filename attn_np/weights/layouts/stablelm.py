"""StableLM as `transformers` names it: a quarter of each head is rotated."""

from typing import Any

from attn_np.weights.layouts._decoder import NORM_BIAS_KEYS, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `StableLmConfig`. Norms of single heads, each in a tensor of its own, are refused."""
    hf.only("qk_layernorm", False)
    hf.skip("use_parallel_residual")
    fields: dict[str, Any] = sizes(hf, kv_heads=32) | {"qkv_bias": hf.flag("use_qkv_bias", False)}
    hf.only("head_dim", fields["d_model"] // fields["num_heads"])
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.25)


LAYOUT = family(
    "StableLmModel",
    table_and_fields,
    {"decoder": table(flags=("qkv_bias",))},
    model_types=("stablelm",),
    ignored=NORM_BIAS_KEYS,
    elsewhere=("model.norm.bias", "norm.bias"),
)
