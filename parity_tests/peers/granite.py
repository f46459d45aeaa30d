"""Granite: a factor on the scores that is not the width's, and none."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "attention_multiplier": 0.3, "residual_multiplier": 0.5}

PEERS = {
    "a factor": Model("GraniteForCausalLM", OWN, AT),
    "biases, no factor": Model(
        "GraniteForCausalLM", OWN | {"attention_multiplier": 1.0, "attention_bias": True}, AT, layers=(1,)
    ),
}
