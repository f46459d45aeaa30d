"""DistilBERT as `transformers` names it: plain heads in both directions."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DistilBertConfig`."""
    hf.check_layer("n_layers", layer)
    hf.skip("activation", "hidden_dim", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")
    hf.only("pruned_heads", {})
    return "mha", {"d_model": hf.integer("dim"), "num_heads": hf.integer("n_heads")}


RULES: dict[Names, tuple[Names, str]] = {
    "w_q": ("q_lin.weight", "(h k) d -> d h k"),
    "w_k": ("k_lin.weight", "(h k) i -> i h k"),
    "w_v": ("v_lin.weight", "(h v) j -> j h v"),
    "w_o": ("out_lin.weight", "o (h v) -> h v o"),
    "b_q": ("q_lin.bias", "(h k) -> h k"),
    "b_k": ("k_lin.bias", "(h k) -> h k"),
    "b_v": ("v_lin.bias", "(h v) -> h v"),
    "b_o": ("out_lin.bias", "o -> o"),
}
LAYOUT = Layout(
    origin="transformers: DistilBertModel",
    prefixes=("distilbert.transformer.layer.{layer}.attention.", "transformer.layer.{layer}.attention."),
    tables={"mha": Table(rules=RULES, letters={"d_model": "d", "num_heads": "h"})},
    elsewhere=(
        *(f"{start}{key}" for start in ("", "distilbert.") for key in ("embeddings.*", "transformer.layer.*")),
        *("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "pre_classifier.*", "classifier.*"),
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("distilbert",),
    table_and_fields=table_and_fields,
)
