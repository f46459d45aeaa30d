"""Command R, plain and with biases, and Command R+, whose queries and keys are normed."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "pad_token_id": 0}
NORMED = {"use_qk_norm": True, "layer_norm_eps": 0.125}

PEERS = {
    "plain": Model("CohereForCausalLM", OWN, AT, layers=(1,)),
    "normed": Model("CohereForCausalLM", OWN | NORMED | {"attention_bias": True}, AT),
}
