"""Longformer: a window of each layer's own, with global positions, in one text more than in the other, and without."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model
from parity_tests.peers.bert import AT
from parity_tests.peers.bert import SMALL as BERT

SMALL: dict[str, Any] = BERT | {"attention_window": [4, 8], "max_position_embeddings": 12, "pad_token_id": 0}


def whole(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two texts as long as whole windows: the library gives zeros where a text is filled up."""
    return {"input_ids": torch.from_numpy(rng.integers(1, 11, (2, 8)))}


def marked(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The same with global positions."""
    given = whole(rng)
    marks = torch.zeros_like(given["input_ids"])
    marks[0, 0] = marks[1, 0] = marks[1, 6] = 1
    return given | {"global_attention_mask": marks}


def global_positions(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `global_mask`."""
    marks = given.get("global_attention_mask")
    return {} if marks is None else {"global_mask": marks.numpy() == 1}


def peer(name: str, start: str, given: Any, **fields: Any) -> Model:
    at = f"{start}{AT}"
    return Model(name, SMALL | fields, f"{at}self", f"{at}output.dense", given=given, meaning=global_positions)


PEERS = {
    "global positions": peer("LongformerModel", "", marked),
    "windows alone": peer("LongformerForMaskedLM", "longformer.", whole, attention_window=4),
}

PLAIN = PEERS["windows alone"]
REFUSED = {
    "an odd window": (PLAIN, {"attention_window": 3}, "'attention_window': expected an even number from 2"),
    "no window": (PLAIN, {"attention_window": [4]}, "'attention_window': expected an even number from 2 for layer 1"),
}
