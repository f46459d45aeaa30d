"""Qwen3-Next: layers of the gated delta rule and of gated attention, with biases and without."""

from collections.abc import Mapping
from typing import Any

import torch

from parity_tests.peers import Arrays, Model
from parity_tests.peers.llama import AT, SMALL

DELTA = "model.layers.{layer}.linear_attn"
OWN = SMALL | {
    "head_dim": 8,
    "rms_norm_eps": 0.125,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 5,
    "shared_expert_intermediate_size": 5,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 3,
    "experts_implementation": "eager",
}


def real(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask` for a layer with a state: where there is a word."""
    return {"mask": given["attention_mask"].numpy() == 1}


PEERS = {
    "gated": Model("Qwen3NextForCausalLM", OWN, AT, layers=(1,)),
    "biases": Model("Qwen3NextForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
    "the gated delta rule": Model("Qwen3NextForCausalLM", OWN, DELTA, layers=(0,), meaning=real),
    "a head of keys for each of values": Model(
        "Qwen3NextForCausalLM", OWN | {"linear_num_key_heads": 4}, DELTA, layers=(0,), meaning=real
    ),
}

REFUSED = {
    "another activation": (
        PEERS["gated"],
        {"layer_types": ["full_attention", "linear_attention"], "hidden_act": "gelu"},
        "'hidden_act': expected one of 'silu'",
    ),
}
