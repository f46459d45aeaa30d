"""BitNet: a norm over what all heads give, with biases of the projections and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "rms_norm_eps": 0.125}

PEERS = {
    "plain": Model("BitNetForCausalLM", OWN, AT),
    "biases": Model("BitNetForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}
