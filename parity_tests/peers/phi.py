"""Phi-2: biases everywhere, half of a head turns, with shared heads and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16}

PEERS = {
    "shared heads": Model("PhiForCausalLM", OWN, AT),
    "a head of keys for each": Model("PhiModel", OWN | {"num_key_value_heads": None}, "layers.{layer}.self_attn"),
}

REFUSED = {"normed": (PEERS["shared heads"], {"qk_layernorm": True}, "'qk_layernorm': expected one of False")}
