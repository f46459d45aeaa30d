"""MPNet as `transformers` names it: BERT with T5's table of distances, which the encoder keeps for all its layers."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `MPNetConfig`: scores are scaled, and the last bucket begins at a distance of 128."""
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    return "t5_bias", {
        "d_model": width,
        "num_heads": heads,
        "use_bias": True,
        "scale": (width // heads) ** -0.5,
        "num_buckets": hf.integer("relative_attention_num_buckets", 32),
        "max_distance": 128,
    }


LAYOUT = Layout(
    origin="transformers: MPNetModel",
    prefixes=("mpnet.encoder.layer.{layer}.", "encoder.layer.{layer}."),
    tables={
        "t5_bias": Table(
            rules={
                "w_q": ("attention.attn.q.weight", "(h k) d -> d h k"),
                "w_k": ("attention.attn.k.weight", "(h k) i -> i h k"),
                "w_v": ("attention.attn.v.weight", "(h v) j -> j h v"),
                "w_o": ("attention.attn.o.weight", "o (h v) -> h v o"),
                "b_q": ("attention.attn.q.bias", "(h k) -> h k"),
                "b_k": ("attention.attn.k.bias", "(h k) -> h k"),
                "b_v": ("attention.attn.v.bias", "(h v) -> h v"),
                "b_o": ("attention.attn.o.bias", "o -> o"),
                "w_bias": ("relative_attention_bias.weight", "x h -> x h"),
            },
            letters={"d_model": "d", "num_heads": "h", "num_buckets": "x"},
            not_in_weights=("scale",),
            fixed={"use_bias": True, "max_distance": 128},
            keys_beside_layers=("relative_attention_bias.weight",),
        )
    },
    ignored=("attention.LayerNorm.*", "intermediate.dense.*", "output.dense.*", "output.LayerNorm.*"),
    elsewhere=(
        *(f"{start}{key}" for start in ("", "mpnet.") for key in ("embeddings.*", "encoder.layer.*", "pooler.dense.*")),
        *("lm_head.*", "classifier.*", "qa_outputs.*"),
    ),
    metadata={"format": "pt"},
    model_types=("mpnet",),
    table_and_fields=table_and_fields,
)
