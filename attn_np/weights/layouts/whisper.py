"""Whisper as `transformers` names it: blocks as BART's, without a bias on keys, which would change nothing."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._encoder_decoder import ELSEWHERE, PREFIXES, RULES, fields
from attn_np.weights.layouts._hf_config import HFConfig

OTHER_FIELDS = (
    "apply_spec_augment",
    "classifier_proj_size",
    "forced_decoder_ids",
    "max_source_positions",
    "max_target_positions",
    "median_filter_width",
    "num_mel_bins",
    "use_weighted_layer_sum",
)


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `WhisperConfig`."""
    hf.skip(*OTHER_FIELDS)
    hf.skip(*(f"mask_{axis}_{name}" for axis in ("time", "feature") for name in ("prob", "length", "min_masks")))
    return "mha", fields(hf, layer, part)


LAYOUT = Layout(
    origin="transformers: WhisperModel",
    prefixes=PREFIXES,
    tables={
        "mha": Table(
            rules={**RULES, "b_k": ("k_proj.bias", "(h k) -> h k")},
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("causal",),
            absent=("k_proj.bias",),
        ),
    },
    elsewhere=(
        *ELSEWHERE,
        *(f"{start}encoder.conv{n}.*" for start in ("model.", "") for n in (1, 2)),
        "proj_out.weight",
    ),
    metadata={"format": "pt"},
    model_types=("whisper",),
    table_and_fields=table_and_fields,
)
