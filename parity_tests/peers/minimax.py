"""MiniMax: layers of softmax attention, with a window and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}

PEERS = {
    "every second layer": Model(
        "MiniMaxForCausalLM", OWN | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, AT, layers=(0,)
    ),
    "a window": Model("MiniMaxModel", OWN | {"sliding_window": 3}, "layers.{layer}.self_attn", layers=(0,)),
}

REFUSED = {
    "lightning attention": (
        PEERS["every second layer"],
        {},
        "'layer_types': expected 'full_attention' for layer 1",
    ),
}
