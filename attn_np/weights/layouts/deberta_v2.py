"""DeBERTa versions 2 and 3 as `transformers` names them: all layers share a table of distances beside them."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DebertaV2Config`: distances share the projections of contents, or have their own."""
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    hf.only("attention_head_size", width // max(heads, 1))
    if not hf.flag("relative_attention", False):
        hf.refuse("relative_attention", "true, as layers here use distances", False)
    shared = hf.flag("share_att_key", False)
    norm = hf.only("norm_rel_ebd", "none", "layer_norm") == "layer_norm"
    hf.skip("position_biased_input", "legacy", "conv_kernel_size", "conv_act", "conv_groups")
    hf.skip(*(f"pooler_{name}" for name in ("dropout", "hidden_act", "hidden_size")))
    terms = hf.get("pos_att_type", ())
    terms = sorted(term.strip() for term in terms.lower().split("|")) if isinstance(terms, str) else sorted(terms)
    distance = hf.get("max_relative_positions", -1)
    if type(distance) is not int or distance < 1:
        distance = hf.integer("max_position_embeddings", 512)
    buckets = hf.get("position_buckets", -1)
    table_name = ", ".join(terms)
    return table_name if not shared and table_name in LAYOUT.tables else "disentangled", {
        "d_model": width,
        "num_heads": heads,
        "max_distance": distance,
        "score_terms": tuple(terms),
        "buckets_per_side": buckets if type(buckets) is int and buckets > 0 else None,
        "p2c_view": "query",
        "share_projections": shared,
        "rel_projection_bias": not shared,
        **({"norm_rel": True, "norm_eps": hf.number("layer_norm_eps", 1e-7)} if norm else {}),
    }


RULES: dict[Names, tuple[Names, str]] = {
    "w_q": ("attention.self.query_proj.weight", "(h k) d -> d h k"),
    "w_k": ("attention.self.key_proj.weight", "(h k) i -> i h k"),
    "w_v": ("attention.self.value_proj.weight", "(h v) j -> j h v"),
    "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
    "b_q": ("attention.self.query_proj.bias", "(h k) -> h k"),
    "b_k": ("attention.self.key_proj.bias", "(h k) -> h k"),
    "b_v": ("attention.self.value_proj.bias", "(h v) -> h v"),
    "b_o": ("attention.output.dense.bias", "o -> o"),
    "w_rel": ("rel_embeddings.weight", "x d -> x d"),
    "w_rel_norm": ("LayerNorm.weight", "d -> d"),
    "b_rel": ("LayerNorm.bias", "d -> d"),
}
SHARED_PROJECTIONS = Table(
    rules=RULES,
    letters={"d_model": "d", "num_heads": "h"},
    flags={"norm_rel": ("w_rel_norm", "b_rel")},
    not_in_weights=("max_distance", "buckets_per_side", "score_terms", "norm_eps"),
    fixed={"p2c_view": "query", "share_projections": True},
    keys_beside_layers=("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"),
)


def own_projections(*terms: str) -> Table:
    """The table for distances with projections of their own, one for each term beside content to content."""
    rules = dict(RULES)
    for term in terms:
        ours, theirs = {"c2p": ("rel_k", "pos_key_proj"), "p2c": ("rel_q", "pos_query_proj")}[term]
        rules[f"w_{ours}"] = f"attention.self.{theirs}.weight", "(h k) d -> d h k"
        rules[f"b_{ours}"] = f"attention.self.{theirs}.bias", "(h k) -> h k"
    fixed = {"p2c_view": "query", "rel_projection_bias": True, "score_terms": terms}
    not_in_weights = tuple(name for name in SHARED_PROJECTIONS.not_in_weights if name != "score_terms")
    return replace(SHARED_PROJECTIONS, rules=rules, not_in_weights=not_in_weights, fixed=fixed, variant="disentangled")


LAYOUT = Layout(
    origin="transformers: DebertaV2Model",
    prefixes=("encoder.layer.{layer}.", "deberta.encoder.layer.{layer}."),
    tables={
        "disentangled": SHARED_PROJECTIONS,
        "c2p, p2c": own_projections("c2p", "p2c"),
        "c2p": own_projections("c2p"),
        "p2c": own_projections("p2c"),
    },
    ignored=("attention.output.LayerNorm.*", "intermediate.dense.*", "output.dense.*", "output.LayerNorm.*"),
    elsewhere=(
        *(
            f"{start}{key}"
            for start in ("", "deberta.")
            for key in ("embeddings.*", "encoder.layer.*", "encoder.conv.*")
        ),
        "lm_predictions.*",
        "mask_predictions.*",
        "cls.*",
        "pooler.dense.*",
        "classifier.*",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("deberta-v2",),
    table_and_fields=table_and_fields,
)
