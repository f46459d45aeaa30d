"""Qwen2-VL and Qwen2.5-VL: the text model with positions on three axes, alone and beside the part that sees."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model, hidden_keys, tokens
from parity_tests.peers.llama import SMALL, YARN

SECTIONS = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 3, 2]}
TEXT: dict[str, Any] = SMALL | {"hidden_size": 48, "rope_parameters": SECTIONS}
VISION = {"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 2, "out_hidden_size": 48, "intermediate_size": 5}
AT = "layers.{layer}.self_attn"
WHOLE = f"model.language_model.{AT}"


def places(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two sentences whose tokens stand at other places in time, by row and by column."""
    return tokens(rng) | {"position_ids": torch.from_numpy(rng.integers(0, 30, (3, 2, 7)))}


def meaning(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """The filling as our mask, and the places as our positions."""
    return hidden_keys(given, call) | {"positions": given["position_ids"].numpy()}


def model(name: str, config: Mapping[str, Any], takes: str, **options: Any) -> Model:
    return Model(name, config, takes, given=places, meaning=meaning, **options)


PEERS = {
    "text": model("Qwen2VLTextModel", TEXT, AT),
    "windows": model(
        "Qwen2VLTextModel", TEXT | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}, AT
    ),
    "beside the part that sees": model(
        "Qwen2VLForConditionalGeneration", {"text_config": TEXT, "vision_config": VISION | {"hidden_size": 48}}, WHOLE
    ),
    "Qwen2.5-VL, scaled": model(
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": TEXT | {"rope_parameters": SECTIONS | YARN | {"original_max_position_embeddings": 3}},
            "vision_config": VISION,
        },
        WHOLE,
    ),
}

REFUSED = {
    "a part of a head": (
        PEERS["text"],
        {"rope_parameters": SECTIONS | {"partial_rotary_factor": 0.5}},
        "'partial_rotary_factor': expected 1, as this family",
    ),
    "two axes": (
        PEERS["text"],
        {"rope_parameters": SECTIONS | {"mrope_section": [3, 3]}},
        "'rope_parameters.mrope_section': expected a list of 3 counts of pairs",
    ),
}
