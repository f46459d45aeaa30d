"""Laguna: gates of heads and of numbers, heads by layer, and positions by type of layers."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {
    "head_dim": 8,
    "rms_norm_eps": 0.125,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 3,
    "num_attention_heads_per_layer": [4, 6],
    "mlp_layer_types": ["dense", "dense"],
}

PEERS = {
    "heads": Model("LagunaForCausalLM", OWN, AT),
    "numbers, biases": Model("LagunaForCausalLM", OWN | {"gating": "per-element", "attention_bias": True}, AT),
}
