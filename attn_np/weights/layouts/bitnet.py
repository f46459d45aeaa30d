"""BitNet as `transformers` names it: what all heads give is normed as one before the output projection."""

from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BitNetConfig`."""
    fields: dict[str, Any] = (
        sizes(hf, kv_heads=5) | biases(hf) | NORM | {"context_norm_eps": hf.number("rms_norm_eps", 1e-5)}
    )
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"], base=500000.0)


NORM = {"context_norm": "rms", "context_norm_over": "all", "context_norm_weight": "own"}
TABLE = table(
    rules={"w_context_norm_heads": ("self_attn.attn_sub_norm.weight", "(h v) -> h v")},
    flags=BIAS_FLAGS,
    not_in_weights=("context_norm_eps",),
    fixed=NORM,
)
LAYOUT = family(
    "BitNetModel",
    table_and_fields,
    {"decoder": TABLE},
    model_types=("bitnet",),
    ignored=("mlp.*",),
)
