"""nanochat: norms without a weight after a rotation the other way round."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 24, "rms_norm_eps": 0.125}

PEERS = {
    "plain": Model("NanoChatForCausalLM", OWN, AT),
    "biases": Model("NanoChatForCausalLM", OWN | {"attention_bias": True, "num_key_value_heads": 4}, AT, layers=(1,)),
}
