"""Mixtral: a window, and none."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "num_local_experts": 2, "experts_implementation": "eager"}

PEERS = {
    "whole": Model("MixtralForCausalLM", OWN, AT, layers=(1,)),
    "window": Model("MixtralForCausalLM", OWN | {"sliding_window": 3, "head_dim": 6}, AT, layers=(1,)),
}
