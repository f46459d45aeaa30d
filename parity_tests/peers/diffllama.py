"""DiffLlama: heads in pairs, shared keys and values, lambda by the layer's number, a norm without a weight."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

# Twelve heads of queries are six, in three groups: neighbours that share are told from those a group apart.
OWN: dict[str, Any] = {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 4, "rms_norm_eps": 0.125}

PEERS = {
    "biases": Model("DiffLlamaForCausalLM", SMALL | OWN | {"attention_bias": True}, AT),
    "no biases": Model("DiffLlamaForCausalLM", SMALL | OWN, AT, layers=(1,)),
}
REFUSED = {
    "scaled": (
        PEERS["no biases"],
        {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}},
        "'rope_parameters': expected rotary positions without scaling, got 'linear'",
    ),
}
