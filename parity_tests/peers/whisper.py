"""Whisper: sound is read, text is written, and keys have no bias."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model
from parity_tests.peers.bart import DECODER, ENCODER
from parity_tests.peers.bart import SMALL as TEXT
from parity_tests.peers.t5 import two_texts, written_keys

SMALL: dict[str, Any] = {name: value for name, value in TEXT.items() if name != "max_position_embeddings"}
SMALL |= {"num_mel_bins": 4, "max_source_positions": 5, "max_target_positions": 8}
SMALL |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
WHOLE = "WhisperForConditionalGeneration"


def sound(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two sounds of twice five columns, and two texts."""
    texts = {name: x for name, x in two_texts(rng).items() if name.startswith("decoder")}
    return texts | {"input_features": torch.from_numpy(rng.normal(size=(2, 4, 10)))}


def all_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """No `mask`: sound is never filled up."""
    return {}


PEERS = {
    "encoder": Model(WHOLE, SMALL, f"model.{ENCODER}self_attn", part="encoder", given=sound, meaning=all_keys),
    "decoder": Model(
        WHOLE, SMALL, f"model.{DECODER}self_attn", part="decoder", given=sound, meaning=written_keys, shards="8KB"
    ),
    "cross": Model(
        "WhisperModel",
        SMALL,
        f"{DECODER}encoder_attn",
        part="cross",
        given=sound,
        meaning=all_keys,
        key="key_value_states",
        layers=(2,),
    ),
}

REFUSED = {
    "fewer layers": (PEERS["encoder"], {"encoder_layers": 1}, "'encoder_layers': expected more than 1"),
    "fewer layers of the decoder": (PEERS["decoder"], {"decoder_layers": 1}, "'decoder_layers': expected more than 1"),
}
