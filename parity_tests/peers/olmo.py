"""OLMo: clipped queries, keys and values, with biases, and none."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

PEERS = {
    "clipped": Model("OlmoForCausalLM", SMALL | {"hidden_size": 16, "clip_qkv": 0.25, "attention_bias": True}, AT),
    "plain": Model("OlmoForCausalLM", SMALL | {"hidden_size": 16}, AT, layers=(1,)),
}
