"""Qwen 3: normed queries and keys, with a number under the root that is felt; biases; a window in some layers."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL
from parity_tests.peers.qwen2 import WINDOW

OWN = {"head_dim": 6, "rms_norm_eps": 0.125}

PEERS = {
    "biases": Model("Qwen3ForCausalLM", SMALL | OWN | {"attention_bias": True}, AT, layers=(1,)),
    "window": Model("Qwen3ForCausalLM", WINDOW | OWN, AT),
}
