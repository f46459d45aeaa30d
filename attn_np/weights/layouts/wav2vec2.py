"""Wav2Vec 2 as `transformers` names it: plain heads over what convolutions made of sound."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._encoder_decoder import RULES
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Wav2Vec2Config`; all of its many other fields are about what is around attention."""
    sizes = {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads")}
    hf.skip(*OTHER_FIELDS, *(key for key in hf if key.startswith(OTHER_STARTS)))
    return "mha", sizes


OTHER_STARTS = (
    "conv_", "num_conv_pos_", "feat_", "mask_", "apply_spec_", "num_codevector", "codevector_", "ctc_", "tdnn_",
    "xvector_", "adapter_", "num_adapter_", "final_dropout", "layer_norm_", "feature_", "contrastive_", "diversity_",
    "use_weighted_layer_sum", "classifier_", "proj_codevector_", "num_negatives", "output_hidden_size",
)  # fmt: skip
OTHER_FIELDS = (
    "do_stable_layer_norm", "num_feat_extract_layers", "add_adapter", "activation_dropout", "gradient_checkpointing",
    "loss_reduction", "freeze_feat_extract_train", "no_mask_channel_overlap", "no_mask_time_overlap", "hidden_dropout",
    "num_ctc_classes", "replace_prob", "conv_pos_batch_norm", "squeeze_factor",
)  # fmt: skip
STARTS = ("wav2vec2.", "hubert.", "data2vec_audio.", "unispeech.", "unispeech_sat.", "sew.", "")
LAYOUT = Layout(
    origin="transformers: Wav2Vec2Model and the models that keep its names",
    prefixes=tuple(f"{start}encoder.layers.{{layer}}.attention." for start in STARTS),
    tables={
        "mha": Table(
            rules=RULES | {"b_k": ("k_proj.bias", "(h k) -> h k")},
            letters={"d_model": "d", "num_heads": "h"},
        )
    },
    elsewhere=(
        *(f"{start}{key}" for start in STARTS for key in ("encoder.*", "feature_*", "masked_spec_embed", "adapter.*")),
        *("lm_head.*", "project_*", "quantizer.*", "projector.*", "classifier.*"),
    ),
    metadata={"format": "pt"},
    model_types=("wav2vec2",),
    table_and_fields=table_and_fields,
)
