"""DeBERTa's first version: both terms and one.

The library takes the root of the scale in float32: widths whose root is a whole number.
"""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.deberta_v2 import shown, shown_keys

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 4,
}


def peer(name: str, start: str, layers: tuple[int, ...] = (0, 1), **fields: Any) -> Model:
    at = f"{start}encoder.layer.{{layer}}.attention."
    return Model(name, SMALL | fields, f"{at}self", f"{at}output.dense", layers, given=shown, meaning=shown_keys)


PEERS = {
    "both terms": peer("DebertaForMaskedLM", "deberta."),
    "all distances": peer("DebertaModel", "", (1,), max_relative_positions=-1),
    "contents look at distances": peer("DebertaModel", "", (1,), pos_att_type="c2p", num_attention_heads=6),
    "distances look at contents": peer("DebertaModel", "", (1,), pos_att_type=["p2c"], num_attention_heads=6),
}

PLAIN = PEERS["both terms"]
REFUSED = {
    "no distances": (PLAIN, {"relative_attention": False}, "'relative_attention': expected true"),
    "heads that are mixed": (PLAIN, {"talking_head": True}, "'talking_head': expected one of False"),
    "no terms": (PLAIN, {"pos_att_type": None}, "'pos_att_type': expected c2p, p2c or both"),
}
