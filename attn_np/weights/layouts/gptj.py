"""GPT-J as `transformers` names it: interleaved rotary pairs in the first numbers of each head, and no biases."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPTJConfig`. It needs `rotary_dim`: without it the angles are of the whole width."""
    hf.check_layer("n_layer", layer)
    hf.skip("n_positions", "n_ctx", "n_inner", "activation_function", "rotary", "scale_attn_weights")
    hf.skip(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    width, heads, rotary_dim = hf.integer("n_embd"), hf.integer("n_head"), hf.integer("rotary_dim")
    return "decoder", {
        "d_model": width,
        "num_heads": heads,
        "rope_layout": "interleaved",
        "rotary_dim": rotary_dim if rotary_dim * heads != width else None,
    }


LAYOUT = Layout(
    origin="transformers: GPTJModel",
    prefixes=("transformer.h.{layer}.", "h.{layer}."),
    tables={
        "decoder": Table(
            rules={
                "w_q": ("attn.q_proj.weight", "(h k) d -> d h k"),
                "w_k": ("attn.k_proj.weight", "(g k) d -> d g k"),
                "w_v": ("attn.v_proj.weight", "(g v) d -> d g v"),
                "w_o": ("attn.out_proj.weight", "o (h v) -> h v o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("rotary_dim", "max_positions"),
            fixed={"rope_layout": "interleaved"},
        )
    },
    ignored=(
        "attn.bias",  # the causal mask
        "attn.masked_bias",  # minus infinity
        "attn.embed_positions",  # follow from the config
        "ln_1.*",
        "mlp.*",
    ),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "transformer.") for key in ("wte.weight", "ln_f.*", "h.*")),
        "lm_head.*",
        "score.weight",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("gptj",),
    table_and_fields=table_and_fields,
)
