"""FlexOlmo: norms over all heads, with biases and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT
from parity_tests.peers.olmo2 import OWN

EXPERTS = OWN | {"num_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0, "experts_implementation": "eager"}

PEERS = {
    "plain": Model("FlexOlmoForCausalLM", EXPERTS, AT),
    "biases": Model("FlexOlmoForCausalLM", EXPERTS | {"attention_bias": True}, AT, layers=(1,)),
}
