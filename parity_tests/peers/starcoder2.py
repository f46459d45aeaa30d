"""StarCoder 2: shared heads, biases or none, a window that is shorter than the sentence or none."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16}

PEERS = {
    "window": Model("Starcoder2ForCausalLM", OWN | {"sliding_window": 3}, AT),
    "whole, no biases": Model("Starcoder2ForCausalLM", OWN | {"use_bias": False}, AT, layers=(1,)),
}
