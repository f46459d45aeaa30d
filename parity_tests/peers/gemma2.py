"""Gemma 2: a scale that is not the width's, a cap that is felt, and a window in the first of two layers."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 6, "query_pre_attn_scalar": 5, "sliding_window": 3}

PEERS = {
    "capped": Model("Gemma2ForCausalLM", OWN | {"attn_logit_softcapping": 0.75}, AT),
    "biases": Model(
        "Gemma2ForCausalLM", OWN | {"attn_logit_softcapping": None, "attention_bias": True}, AT, layers=(1,)
    ),
}
