"""MiniMax: layers of softmax attention, with a window and without, and layers of lightning attention."""

from parity_tests.peers import Model
from parity_tests.peers.kimi_linear import all_keys, whole
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
OWN |= {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}

PEERS = {
    "every second layer": Model("MiniMaxForCausalLM", OWN, AT, layers=(0,)),
    "a window": Model("MiniMaxForCausalLM", OWN | {"sliding_window": 3}, AT, layers=(0,)),
    "lightning attention": Model("MiniMaxForCausalLM", OWN, AT, layers=(1,), given=whole, meaning=all_keys),
    "lightning attention in blocks": Model(
        "MiniMaxForCausalLM",
        OWN | {"num_hidden_layers": 3, "layer_types": ["linear_attention"] * 3, "block_size": 3},
        AT,
        layers=(0, 1, 2),
        given=whole,
        meaning=all_keys,
    ),
}

REFUSED = {
    "another activation": (
        PEERS["lightning attention"],
        {"hidden_act": "gelu"},
        "'hidden_act': expected one of 'silu'",
    ),
}
