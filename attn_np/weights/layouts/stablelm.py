"""StableLM as `transformers` names it: a quarter of each head is rotated."""

from typing import Any

from attn_np.weights.layouts._decoder import NORM_BIAS_KEYS, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `StableLmConfig`: with norms, each head has one, in a tensor of its own."""
    hf.skip("use_parallel_residual")
    fields: dict[str, Any] = sizes(hf, kv_heads=32) | {"qkv_bias": hf.flag("use_qkv_bias", False)}
    hf.only("head_dim", fields["d_model"] // fields["num_heads"])
    fields |= rotary(hf, fields["head_dim"], share=0.25)
    if not hf.flag("qk_layernorm", False):
        return "decoder", fields
    return "normed", fields | NORM | {"norm_eps": hf.number("layer_norm_eps", 1e-5)}


NORM = {"norm": "layer", "norm_weight": "own"}
NORMED = table(
    rules={
        "w_q_norm_heads": ("self_attn.q_layernorm.norms.{n}.weight", "h k -> h k"),
        "w_k_norm_heads": ("self_attn.k_layernorm.norms.{n}.weight", "g k -> g k"),
    },
    flags=("qkv_bias",),
    not_in_weights=("norm_eps",),
    fixed=NORM,
    variant="decoder",
)


LAYOUT = family(
    "StableLmModel",
    table_and_fields,
    {"normed": NORMED, "decoder": table(flags=("qkv_bias",))},
    model_types=("stablelm",),
    ignored=NORM_BIAS_KEYS,
    elsewhere=("model.norm.bias", "norm.bias"),
)
