"""BERT as `transformers` names it: query, key and value under `attention.self`, the output under `attention.output`.

`torch.nn.Linear` stores its weight as [out, in], with the heads in order along the projected side. The layer norm and
the residual connection around the attention are not part of it.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `BertConfig`, and of the configs of models that differ around attention alone."""
    hf.only("position_embedding_type", "absolute")
    hf.only("pruned_heads", {})
    hf.only("add_cross_attention", False)
    hf.skip("embedding_size", *(f"summary_{name}" for name in ("type", "use_proj", "activation", "last_dropout")))
    return "mha", {
        "d_model": hf.integer("hidden_size"),
        "num_heads": hf.integer("num_attention_heads"),
        "causal": hf.flag("is_decoder", False),
    }


MODEL_PREFIXES = ("", "bert.", "roberta.", "electra.")
LAYOUT = Layout(
    origin="transformers: BertModel and the models that keep its names",
    prefixes=tuple(f"{model}encoder.layer.{{layer}}." for model in MODEL_PREFIXES),
    tables={
        "mha": Table(
            rules={
                "w_q": ("attention.self.query.weight", "(h k) d -> d h k"),
                "w_k": ("attention.self.key.weight", "(h k) i -> i h k"),
                "w_v": ("attention.self.value.weight", "(h v) j -> j h v"),
                "w_o": ("attention.output.dense.weight", "o (h v) -> h v o"),
                "b_q": ("attention.self.query.bias", "(h k) -> h k"),
                "b_k": ("attention.self.key.bias", "(h k) -> h k"),
                "b_v": ("attention.self.value.bias", "(h v) -> h v"),
                "b_o": ("attention.output.dense.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            # A causal model (`is_decoder`) has the same weights.
            not_in_weights=("causal",),
        )
    },
    ignored=(
        "attention.output.LayerNorm.weight",
        "attention.output.LayerNorm.bias",
        "attention.output.LayerNorm.gamma",
        "attention.output.LayerNorm.beta",
        "intermediate.dense.*",
        "output.dense.*",
        "output.LayerNorm.*",
    ),
    elsewhere=(
        *(
            f"{model}{key}"
            for model in MODEL_PREFIXES
            for key in ("embeddings.*", "embeddings_project.*", "encoder.layer.*", "pooler.dense.*")
        ),
        *("lm_head.*", "discriminator_predictions.*", "generator_predictions.*", "generator_lm_head.*"),
        "classifier.*",
        "cls.*",
        "qa_outputs.*",
    ),
    other_sidecar_names={"hidden_size": "d_model", "num_attention_heads": "num_heads", "is_decoder": "causal"},
    metadata={"format": "pt"},
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    table_and_fields=table_and_fields,
)
