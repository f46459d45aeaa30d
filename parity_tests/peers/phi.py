"""Phi-2: biases everywhere, half of a head turns, with shared heads and without, with norms and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16}

PEERS = {
    "shared heads": Model("PhiForCausalLM", OWN, AT),
    "a head of keys for each": Model("PhiModel", OWN | {"num_key_value_heads": None}, "layers.{layer}.self_attn"),
    "normed": Model("PhiForCausalLM", OWN | {"qk_layernorm": True, "layer_norm_eps": 0.125}, AT),
}
