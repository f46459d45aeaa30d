"""CTRL as `transformers` names it: plain causal heads."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `CTRLConfig`."""
    hf.check_layer("n_layer", layer)
    hf.skip("dff", "n_positions", "n_ctx", "from_tf", "control_codes", "pruned_heads")
    hf.skip(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    return "mha", {"d_model": hf.integer("n_embd"), "num_heads": hf.integer("n_head"), "causal": True}


LAYOUT = Layout(
    origin="transformers: CTRLModel",
    prefixes=("transformer.h.{layer}.multi_head_attention.", "h.{layer}.multi_head_attention."),
    tables={
        "mha": Table(
            rules={
                "w_q": ("Wq.weight", "(h k) d -> d h k"),
                "w_k": ("Wk.weight", "(h k) i -> i h k"),
                "w_v": ("Wv.weight", "(h v) j -> j h v"),
                "w_o": ("dense.weight", "o (h v) -> h v o"),
                "b_q": ("Wq.bias", "(h k) -> h k"),
                "b_k": ("Wk.bias", "(h k) -> h k"),
                "b_v": ("Wv.bias", "(h v) -> h v"),
                "b_o": ("dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            fixed={"causal": True},
        )
    },
    elsewhere=("transformer.w.weight", "w.weight", "transformer.h.*", "h.*", "*layernorm.*", "lm_head.*"),
    metadata={"format": "pt"},
    model_types=("ctrl",),
    table_and_fields=table_and_fields,
)
