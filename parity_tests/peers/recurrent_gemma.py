"""RecurrentGemma: the layers that attend, within a window, with biases and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import SMALL

OWN = SMALL | {"hidden_size": 16, "attention_window_size": 3, "block_types": ["recurrent", "attention"]}
AT = "model.layers.{layer}.temporal_block"

PEERS = {
    "one of two layers": Model("RecurrentGemmaForCausalLM", OWN, AT, layers=(1,)),
    "biases": Model("RecurrentGemmaForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}

REFUSED = {
    "a recurrence": (
        PEERS["biases"],
        {"block_types": ["recurrent"]},
        "'block_types': expected 'attention' for layer 1",
    ),
}
