"""RoFormer: neighbours that turn, in both directions and in one, and embeddings of a width of their own."""

from typing import Any

import torch

from parity_tests.peers import Model
from parity_tests.peers.bert import AT, SMALL


def exact_positions(model: Any) -> None:
    """The table of sines and cosines in float64: the library rounds it to float32, whatever the model is in."""
    table = model.get_submodule("roformer" if hasattr(model, "roformer") else "").encoder.embed_positions.weight
    angles = torch.arange(table.shape[0])[:, None] * 10000.0 ** -(torch.arange(0, table.shape[1], 2) / table.shape[1])
    table.copy_(torch.cat([angles.sin(), angles.cos()], dim=1))


def peer(name: str, start: str, layers: tuple[int, ...], **fields: Any) -> Model:
    at = f"{start}{AT}"
    return Model(name, SMALL | fields, f"{at}self", f"{at}output.dense", layers, prepare=exact_positions)


PEERS = {
    "both ways": peer("RoFormerModel", "", (0, 1), embedding_size=5),
    "decoder": peer("RoFormerForCausalLM", "roformer.", (1,), is_decoder=True),
}

REFUSED = {"values that turn": (PEERS["both ways"], {"rotary_value": True}, "'rotary_value': expected one of False")}
