"""MiniMax-Text-01 as `transformers` names it: of its layers, those of softmax attention, which are Mixtral's."""

from typing import Any

from attn_np.weights.layouts import mixtral
from attn_np.weights.layouts._decoder import family, sizes, window
from attn_np.weights.layouts._hf_config import HFConfig, full_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `MiniMaxConfig`: by default every second layer is of lightning attention."""
    hf.skip("block_size", *(f"{kind}_{name}_factor" for kind in PLACES for name in ("alpha", "beta")))
    kinds = ("full_attention", "linear_attention")
    if hf.layer_type(layer, lambda n: kinds[n % 2], *kinds) == "linear_attention":
        hf.refuse("layer_types", f"'full_attention' for layer {layer}, as no layer here is the other", kinds[1])
    fields = sizes(hf, kv_heads=8)
    return "decoder", fields | full_rotary(hf, fields["head_dim"], base=1000000.0) | window(hf)


PLACES = ("full_attn", "linear_attn", "mlp")
LAYOUT = family(
    "MiniMaxModel", table_and_fields, mixtral.LAYOUT.tables, model_types=("minimax",), ignored=("block_sparse_moe.*",)
)
