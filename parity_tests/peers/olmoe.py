"""OLMoE: clipped queries, keys and values after a norm over all heads."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "rms_norm_eps": 0.125}

PEERS = {
    "clipped": Model("OlmoeForCausalLM", SMALL | EXPERTS | {"clip_qkv": 0.5}, AT),
    "biases": Model("OlmoeForCausalLM", SMALL | EXPERTS | {"attention_bias": True}, AT, layers=(1,)),
}
