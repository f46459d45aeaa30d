"""Phi-1 and Phi-2 as `transformers` names them: biases everywhere, and half of each head is rotated."""

from typing import Any

from attn_np.weights.layouts._decoder import BIASES, NORM_BIASES, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, rotary


def config(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `PhiConfig`. Its norms of queries and keys have biases, which our layer has not."""
    hf.only("qk_layernorm", False)
    fields: dict[str, Any] = sizes(hf) | dict.fromkeys(BIASES, True)
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.5)


LAYOUT = family(
    "PhiModel",
    config,
    {"decoder": table(fixed=dict.fromkeys(BIASES, True), names={"o_proj": "dense"})},
    model_types=("phi",),
    ignored=NORM_BIASES,
    elsewhere=("model.final_layernorm.*", "final_layernorm.*", "lm_head.bias"),
)
