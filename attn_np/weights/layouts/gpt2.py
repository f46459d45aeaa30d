"""GPT-2 as `transformers` names it: `Conv1D` keeps weights as [in, out], queries, keys and values side by side."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._stated import Stated


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`GPT2Config`: the scale may be left out, or fall with the layer's number."""
    stated.layers("n_layer", layer)
    stated.only("add_cross_attention", False)
    stated.skip("n_positions", "n_ctx", "n_inner", "activation_function", "reorder_and_upcast_attn")
    stated.skip(*(f"summary_{name}" for name in SUMMARY))
    width, heads = stated.integer("n_embd"), stated.integer("n_head")
    scaled = stated.flag("scale_attn_weights", True)
    scale = (width // heads) ** -0.5 if scaled else 1.0
    falling = stated.flag("scale_attn_by_inverse_layer_idx", False)
    usual = scaled and not falling
    return "mha", {
        "d_model": width,
        "num_heads": heads,
        "scale": None if usual else scale / (layer + 1) if falling else scale,
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
                "w_o": ("attn.c_proj.weight", "(h v) d -> h v d"),
                "b_o": ("attn.c_proj.bias", "d -> d"),
            },
            sizes={"d_model": "d", "num_heads": "h"},
            free=("scale",),
            fixed={"causal": True},
        )
    },
    ignored=(
        "attn.bias",  # the causal mask
        "attn.masked_bias",  # what stood for minus infinity
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
    config=config,
)
