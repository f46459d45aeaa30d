"""OLMoE: clipped queries, keys and values after a norm over all heads."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "num_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
OWN |= {"rms_norm_eps": 0.125}

PEERS = {
    "clipped": Model("OlmoeForCausalLM", OWN | {"clip_qkv": 0.5}, AT),
    "biases": Model("OlmoeForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}
