"""Gemma 3: norms that keep their weights less 1, windows that turn by a base of their own, other layers scaled."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 6, "query_pre_attn_scalar": 5, "sliding_window": 3, "rms_norm_eps": 0.125}
OLD = {"rope_theta": 1000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
TYPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0},
}

PEERS = {
    "pattern": Model("Gemma3ForCausalLM", OWN | OLD | {"sliding_window_pattern": 2}, AT),
    "types": Model(
        "Gemma3ForCausalLM",
        OWN | {"rope_parameters": TYPES, "layer_types": ["full_attention", "sliding_attention"]},
        AT,
    ),
    "biases": Model("Gemma3ForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}
REFUSED = {
    "in both directions": (
        PEERS["types"],
        {"use_bidirectional_attention": True},
        "'use_bidirectional_attention': expected one of False",
    ),
}
