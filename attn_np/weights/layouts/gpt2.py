"""GPT-2 as `transformers` names it: `Conv1D` weights are [in, out], queries, keys and values side by side."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPT2Config`: the scale may be absent, or divided by the layer's number plus one."""
    hf.check_layer("n_layer", layer)
    hf.only("add_cross_attention", False)
    hf.skip("n_positions", "n_ctx", "n_inner", "activation_function", "reorder_and_upcast_attn")
    hf.skip(*(f"summary_{name}" for name in SUMMARY))
    width, heads = hf.integer("n_embd"), hf.integer("n_head")
    scaled, by_layer = hf.flag("scale_attn_weights", True), hf.flag("scale_attn_by_inverse_layer_idx", False)
    scale = (width // heads) ** -0.5 if scaled else 1.0
    return "mha", {
        "d_model": width,
        "num_heads": heads,
        "scale": scale / (layer + 1) if by_layer else None if scaled else scale,
        "causal": True,
    }


SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")

LAYOUT = Layout(
    origin="transformers: GPT2Model and the models that keep its names",
    prefixes=("h.{layer}.", "transformer.h.{layer}."),
    tables={
        "mha": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("attn.c_attn.weight", "d (p h k) -> p d h k"),
                ("b_q", "b_k", "b_v"): ("attn.c_attn.bias", "(p h k) -> p h k"),
                "w_o": ("attn.c_proj.weight", "(h v) o -> h v o"),
                "b_o": ("attn.c_proj.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("scale",),
            fixed={"causal": True},
        )
    },
    ignored=(
        "attn.bias",  # the causal mask
        "attn.masked_bias",  # minus infinity
        "ln_1.*",
        "ln_2.*",
        "mlp.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "transformer.") for key in ("wte.weight", "wpe.weight", "ln_f.*", "h.*")),
        "lm_head.weight",
        "score.weight",
        "classifier.*",
        "qa_outputs.*",
        "multiple_choice_head.*",
    ),
    metadata={"format": "pt"},
    model_types=("gpt2",),
    table_and_fields=table_and_fields,
)
