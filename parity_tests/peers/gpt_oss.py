"""gpt-oss: sinks, a window in the first of two layers, scaled positions whose ramp is not rounded, few experts."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, YARN, scaled

OWN = scaled(**YARN, truncate=False) | {"sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1}
OWN |= {"experts_implementation": "eager"}

PEERS = {
    "biases": Model("GptOssForCausalLM", OWN, AT),
    "plain": Model("GptOssForCausalLM", OWN | {"attention_bias": False}, AT, layers=(0,)),
}
