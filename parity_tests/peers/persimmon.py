"""Persimmon: half of a head turns, after norms with biases and without them."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = {name: x for name, x in SMALL.items() if name != "num_key_value_heads"} | {"hidden_size": 16}

PEERS = {
    "normed": Model("PersimmonForCausalLM", OWN | {"layer_norm_eps": 0.125}, AT),
    "plain": Model("PersimmonForCausalLM", OWN | {"qk_layernorm": False}, AT, layers=(1,)),
}
