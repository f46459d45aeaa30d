"""GLM-4: neighbours that turn, in half of a head or the whole, and its second version."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 8, "pad_token_id": 0, "eos_token_id": 0}
WHOLE = {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 1.0}

PEERS = {
    "half of a head": Model("GlmForCausalLM", OWN, AT),
    "whole heads, no biases": Model(
        "GlmForCausalLM", OWN | {"rope_parameters": WHOLE, "attention_bias": False}, AT, layers=(1,)
    ),
    "the second version": Model("Glm4ForCausalLM", OWN, AT, layers=(1,)),
}
