"""Qwen3-Next: gated attention in one of two layers, with biases and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {
    "head_dim": 8,
    "rms_norm_eps": 0.125,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 5,
    "shared_expert_intermediate_size": 5,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "experts_implementation": "eager",
}

PEERS = {
    "gated": Model("Qwen3NextForCausalLM", OWN, AT, layers=(1,)),
    "biases": Model("Qwen3NextForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}

REFUSED = {
    "linear attention": (
        PEERS["gated"],
        {"layer_types": ["full_attention", "linear_attention"]},
        "'layer_types': expected 'full_attention' for layer 1",
    ),
}
