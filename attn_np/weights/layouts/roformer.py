"""RoFormer as `transformers` names it: BERT's names, and interleaved rotary pairs.

The file has the table of the positions' sines and cosines, rounded to float32; ours are computed.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.bert import LAYOUT as BERT
from attn_np.weights.layouts.esm import NAMES


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `RoFormerConfig`, whose base is always 10000. Rotated values are not ours: refused."""
    hf.only("add_cross_attention", False)
    hf.only("rotary_value", False)
    hf.skip("embedding_size")
    return "decoder", FIXED | {
        "d_model": hf.integer("hidden_size"),
        "num_heads": hf.integer("num_attention_heads"),
        "causal": hf.flag("is_decoder", False),
    }


FIXED = {"rope_layout": "interleaved", "rope_base": 10000.0} | dict.fromkeys(BIAS_FLAGS, True)
LAYOUT = replace(
    BERT,
    origin="transformers: RoFormerModel",
    prefixes=("encoder.layer.{layer}.", "roformer.encoder.layer.{layer}."),
    tables={"decoder": table(not_in_weights=("causal", "max_positions"), fixed=FIXED, names=NAMES)},
    elsewhere=(
        *BERT.elsewhere,
        *(
            f"{start}{key}"
            for start in ("", "roformer.")
            for key in ("embeddings.*", "embeddings_project.*", "encoder.embed_positions.weight", "encoder.layer.*")
        ),
    ),
    other_sidecar_names={},
    model_types=("roformer",),
    table_and_fields=table_and_fields,
)
