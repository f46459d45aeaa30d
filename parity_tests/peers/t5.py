"""T5: both stacks and what lies between them, with a table of distances that the first block keeps for all."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model, tokens

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "d_model": 12,
    "d_kv": 5,
    "d_ff": 7,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
}


def two_texts(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """What is read, and what is written so far: of each pair the second is shorter."""
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    written = torch.from_numpy(rng.integers(1, 11, (2, 6)))
    return tokens(rng) | {"decoder_input_ids": written, "decoder_attention_mask": mask}


def written_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask` for the decoder's own text."""
    return {"mask": given["decoder_attention_mask"].numpy()[:, None, None, :] == 1}


WHOLE, OWN = "T5ForConditionalGeneration", "{layer}.layer.0.SelfAttention"

PEERS = {
    "encoder": Model(WHOLE, SMALL, f"encoder.block.{OWN}", part="encoder", given=two_texts, shards="8KB"),
    "decoder": Model(
        WHOLE, SMALL, f"decoder.block.{OWN}", part="decoder", given=two_texts, meaning=written_keys, layers=(0, 2)
    ),
    "cross": Model(
        WHOLE,
        SMALL,
        "decoder.block.{layer}.layer.1.EncDecAttention",
        part="cross",
        given=two_texts,
        key="key_value_states",
        layers=(2,),
    ),
    "encoder alone": Model("T5EncoderModel", SMALL, f"encoder.block.{OWN}", part="encoder", layers=(1,)),
    "in other languages": Model(
        "MT5ForConditionalGeneration", SMALL, f"encoder.block.{OWN}", part="encoder", given=two_texts, layers=(1,)
    ),
}

REFUSED = {
    "fewer blocks": (PEERS["encoder"], {"num_layers": 1}, "'num_layers': expected more than 1"),
    "fewer blocks of the decoder": (PEERS["cross"], {"num_decoder_layers": 1}, "'num_decoder_layers': expected more"),
    "odd buckets": (PEERS["encoder"], {"relative_attention_num_buckets": 7}, "num_buckets to be a multiple of 4"),
}
