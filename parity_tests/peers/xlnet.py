"""XLNet: all words in both directions, and causal, without token types; a word always sees itself there.

The library takes no filling in a causal model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model
from parity_tests.peers.kimi_linear import all_keys, whole

SMALL: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 5, "mem_len": 0}
AT = "transformer.layer.{layer}.rel_attn"


class PositionsFirst(Model):
    """A model whose arrays have the positions before the batch, within which dropout is the last of attention."""

    def calls(self, model: Any, given: Mapping[str, torch.Tensor]) -> dict[int, tuple[Any, Any, np.ndarray]]:
        """What each layer's attention got and gave, the batch first."""
        return {
            layer: ((args[0].swapaxes(0, 1),), keywords, output.swapaxes(0, 1))
            for layer, (args, keywords, output) in super().calls(model, given).items()
        }


def doubled(model: Any) -> None:
    """Parameters in float64: the library makes them in float32 whatever the default is."""
    model.double()


def seen(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask`: no filling but the own position."""
    shown = given["attention_mask"].numpy()[:, None, None, :] == 1
    return {"mask": shown | np.eye(shown.shape[-1], dtype=bool)}


PEERS = {
    "both directions": PositionsFirst("XLNetLMHeadModel", SMALL, AT, f"{AT}.dropout", meaning=seen, prepare=doubled),
    "causal": PositionsFirst(
        "XLNetModel",
        SMALL | {"attn_type": "uni"},
        "layer.{layer}.rel_attn",
        "layer.{layer}.rel_attn.dropout",
        (1,),
        given=whole,
        meaning=all_keys,
        prepare=doubled,
    ),
}

REFUSED = {
    "two orders of words": (PEERS["causal"], {"bi_data": True}, "'bi_data': expected one of False"),
    "limited distances": (PEERS["causal"], {"clamp_len": 4}, "'clamp_len': expected -1"),
}
