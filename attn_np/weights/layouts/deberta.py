"""DeBERTa's first version as `transformers` names it: one projection for all three, distances with their own.

`in_proj` has each head's query, key and value. Keys have no bias, and neither have the projected distances that
contents look at.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DebertaConfig`; heads that are mixed are refused."""
    hf.only("talking_head", False)
    if not hf.flag("relative_attention", False):
        hf.refuse("relative_attention", "true, as layers here use distances", False)
    hf.skip("position_biased_input", "legacy", *(f"pooler_{name}" for name in ("dropout", "hidden_act", "hidden_size")))
    terms = hf.get("pos_att_type", ())
    terms = sorted(term.strip() for term in terms.lower().split("|")) if isinstance(terms, str) else sorted(terms)
    distance = hf.get("max_relative_positions", -1)
    if type(distance) is not int or distance < 1:
        distance = hf.integer("max_position_embeddings", 512)
    table_name = ", ".join(terms)
    if table_name not in LAYOUT.tables:
        hf.refuse("pos_att_type", "c2p, p2c or both", hf.get("pos_att_type"))
    return table_name, {
        "d_model": hf.integer("hidden_size"),
        "num_heads": hf.integer("num_attention_heads"),
        "max_distance": distance,
        "score_terms": tuple(terms),
        "p2c_view": "query",
        "rel_projection_bias": True,
    }


def table(*terms: str) -> Table:
    """The table for some terms beside content to content."""
    rules: dict[Names, tuple[Names, str]] = {
        ("w_q", "w_k", "w_v"): ("attention.self.in_proj.weight", "(h p k) d -> p d h k"),
        "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
        "b_q": ("attention.self.q_bias", "(h k) -> h k"),
        "b_k": ("attention.self.k_bias", "(h k) -> h k"),
        "b_v": ("attention.self.v_bias", "(h v) -> h v"),
        "b_o": ("attention.output.dense.bias", "o -> o"),
        "w_rel": ("rel_embeddings.weight", "x d -> x d"),
    }
    if "c2p" in terms:
        rules["w_rel_k"] = "attention.self.pos_proj.weight", "(h k) d -> d h k"
        rules["b_rel_k"] = "attention.self.pos_proj.bias", "(h k) -> h k"
    if "p2c" in terms:
        rules["w_rel_q"] = "attention.self.pos_q_proj.weight", "(h k) d -> d h k"
        rules["b_rel_q"] = "attention.self.pos_q_proj.bias", "(h k) -> h k"
    return Table(
        rules=rules,
        letters={"d_model": "d", "num_heads": "h"},
        not_in_weights=("max_distance",),
        fixed={"p2c_view": "query", "rel_projection_bias": True, "score_terms": terms},
        absent=("attention.self.k_bias", *(("attention.self.pos_proj.bias",) if "c2p" in terms else ())),
        keys_beside_layers=("rel_embeddings.weight",),
        variant="disentangled",
    )


LAYOUT = Layout(
    origin="transformers: DebertaModel",
    prefixes=("encoder.layer.{layer}.", "deberta.encoder.layer.{layer}."),
    tables={"c2p, p2c": table("c2p", "p2c"), "c2p": table("c2p"), "p2c": table("p2c")},
    ignored=("attention.output.LayerNorm.*", "intermediate.dense.*", "output.dense.*", "output.LayerNorm.*"),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "deberta.") for key in ("embeddings.*", "encoder.layer.*")),
        *("lm_predictions.*", "cls.*", "pooler.dense.*", "classifier.*", "qa_outputs.*"),
    ),
    metadata={"format": "pt"},
    model_types=("deberta",),
    table_and_fields=table_and_fields,
)
