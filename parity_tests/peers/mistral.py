"""Mistral: shared heads, and a window that is shorter than the sentence."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

PEERS = {
    "window": Model("MistralForCausalLM", SMALL | {"head_dim": 6, "sliding_window": 3}, AT),
    "whole": Model("MistralForCausalLM", SMALL | {"head_dim": 6, "sliding_window": None}, AT, layers=(1,)),
}
