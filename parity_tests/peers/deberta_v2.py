"""DeBERTa's later versions: distances in buckets and as they are, both terms and one.

The library takes the root of the scale, and buckets' logarithms, in float32: widths whose root is a whole number, and
distances away from the buckets' ends.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model, tokens

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "max_relative_positions": 8,
}


def shown(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Of the second sentence the last two words are hidden as keys; what fills a text would look at nothing."""
    given = tokens(rng)
    return given | {"attention_mask": given["attention_mask"][:, None, None]}


def shown_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask`, the same."""
    return {"mask": given["attention_mask"].numpy() == 1}


def whole(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Nothing hidden: the convolution takes no other mask than one of texts that are filled up."""
    return {"input_ids": tokens(rng)["input_ids"]}


def all_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """No `mask`."""
    return {}


def peer(name: str, start: str, layers: tuple[int, ...] = (0, 1), **fields: Any) -> Model:
    at = f"{start}encoder.layer.{{layer}}.attention."
    return Model(name, SMALL | fields, f"{at}self", f"{at}output.dense", layers, given=shown, meaning=shown_keys)


PEERS = {
    "buckets": peer("DebertaV2ForMaskedLM", "deberta."),
    "as version 3": peer("DebertaV2Model", "", norm_rel_ebd="layer_norm"),
    "another epsilon": peer("DebertaV2Model", "", (1,), norm_rel_ebd="layer_norm", layer_norm_eps=0.0625),
    "distances": peer("DebertaV2Model", "", (1,), position_buckets=-1, max_relative_positions=3),
    "projections of their own": peer("DebertaV2ForMaskedLM", "deberta.", share_att_key=False),
    "one term, a projection of its own": peer(
        "DebertaV2Model", "", (1,), pos_att_type=["p2c"], share_att_key=False, num_attention_heads=6
    ),
    "one term": peer("DebertaV2Model", "", (1,), pos_att_type="p2c", num_attention_heads=6),
    "a convolution beside": replace(
        peer("DebertaV2Model", "", (1,), conv_kernel_size=3, max_relative_positions=-1), given=whole, meaning=all_keys
    ),
}

PLAIN = PEERS["buckets"]
REFUSED = {
    "no distances": (PLAIN, {"relative_attention": False}, "'relative_attention': expected true"),
    "another norm of distances": (PLAIN, {"norm_rel_ebd": "rms_norm"}, "'norm_rel_ebd'"),
    "no terms": (PLAIN, {"pos_att_type": None}, "score_terms to be some of c2p, p2c"),
    "heads of another width": (PLAIN, {"attention_head_size": 5}, "'attention_head_size'"),
}
