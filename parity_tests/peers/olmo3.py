"""OLMo 3: a window in one of two layers, and angles that are scaled in the other alone."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, YARN
from parity_tests.peers.olmo2 import OWN

TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
SCALED: dict[str, Any] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": YARN | {"rope_theta": 50.0, "original_max_position_embeddings": 3},
}

PEERS = {
    "scaled where all is seen": Model("Olmo3ForCausalLM", OWN | TYPES | {"rope_parameters": SCALED}, AT),
    "every fourth layer": Model(
        "Olmo3ForCausalLM",
        OWN | {"num_hidden_layers": 4, "sliding_window": 3, "attention_bias": True},
        AT,
        layers=(2, 3),
    ),
}

REFUSED = {
    "no window": (
        PEERS["every fourth layer"],
        {"sliding_window": None},
        "'sliding_window': expected a window for layer 1",
    ),
    "one kind of positions": (
        PEERS["every fourth layer"],
        {"rope_parameters": {"rope_theta": 100.0}},
        "'rope_parameters.sliding_attention': expected the positions of such layers, got none",
    ),
}
