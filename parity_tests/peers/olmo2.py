"""OLMo 2: norms over all heads, with shared heads of keys and without, and biases."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "rms_norm_eps": 0.125}

PEERS = {
    "shared": Model("Olmo2ForCausalLM", OWN, AT),
    "biases": Model("Olmo2ForCausalLM", OWN | {"num_key_value_heads": None, "attention_bias": True}, AT, layers=(1,)),
}
