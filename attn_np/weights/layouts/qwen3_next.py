"""Qwen3-Next as `transformers` names it: of its layers, those of softmax attention, whose outputs are gated.

One projection has the rows of a head's query and then those of its gate.
"""

from typing import Any

from attn_np.weights.layouts._decoder import BIASES, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary
from attn_np.weights.layouts.qwen3 import TABLE as NORMED


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Qwen3NextConfig`: norm weights are stored minus 1, a quarter of a head is rotated."""
    hf.skip(*(f"linear_{name}" for name in LINEAR))
    every = hf.integer("full_attention_interval", 4)
    kinds = ("linear_attention", "full_attention")
    if hf.layer_type(layer, lambda n: kinds[(n + 1) % every == 0], *kinds) == "linear_attention":
        expected = f"'full_attention' for layer {layer}, as the short convolution of the others is not in our layer"
        hf.refuse("layer_types", expected, "linear_attention")
    fields: dict[str, Any] = (
        sizes(hf, kv_heads=2, head_dim=256) | biases(hf) | GATED | {"norm_eps": hf.number("rms_norm_eps", 1e-6)}
    )
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.25)


LINEAR = ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
GATED = {"gate": True, "norm": "rms", "norm_offset": 1.0}
TABLE = table(
    rules={
        ("w_q", "w_gate"): ("self_attn.q_proj.weight", "(h (k | v)) d -> d h k, d h v"),
        ("b_q", "b_gate"): ("self_attn.q_proj.bias", "(h (k | v)) -> h k, h v"),
        **{name: NORMED.rules[name] for name in ("w_q_norm", "w_k_norm")},
    },
    flags=BIASES,
    free=("norm_eps",),
    fixed=GATED,
)
LAYOUT = family(
    "Qwen3NextModel", table_and_fields, {"decoder": TABLE}, model_types=("qwen3_next",), elsewhere=("mtp.*",)
)
