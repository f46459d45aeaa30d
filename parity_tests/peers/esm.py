"""ESM: rotary positions, and none in the layers."""

from parity_tests.peers import Model
from parity_tests.peers.bert import AT
from parity_tests.peers.bert import SMALL as BERT

SMALL = BERT | {"pad_token_id": 0, "mask_token_id": 10, "max_position_embeddings": 12}
TURNS = SMALL | {"position_embedding_type": "rotary", "rope_theta": 100.0}

PEERS = {
    "rotary": Model("EsmModel", TURNS, f"{AT}self", f"{AT}output.dense"),
    "rotary, for words that are hidden": Model(
        "EsmForMaskedLM", TURNS, f"esm.{AT}self", f"esm.{AT}output.dense", layers=(1,)
    ),
    "positions in the embeddings": Model(
        "EsmModel", SMALL | {"position_embedding_type": "absolute"}, f"{AT}self", f"{AT}output.dense", layers=(1,)
    ),
}

REFUSED = {
    "relative keys": (PEERS["rotary"], {"position_embedding_type": "relative_key"}, "'position_embedding_type'"),
}
