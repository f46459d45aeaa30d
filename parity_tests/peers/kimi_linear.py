"""Kimi Linear: a layer of each kind, with biases and a latent of queries and without."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model, tokens

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 3,
    "v_head_dim": 2,
    "linear_num_heads": 2,
    "linear_head_dim": 4,
    "linear_conv_kernel_dim": 3,
    "pad_token_id": 0,
    "rms_norm_eps": 0.125,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
}
AT = "model.layers.{layer}.self_attn"


def whole(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """No filling, behind whose end the library's layers with a state go on to give numbers, where ours give 0."""
    return {"input_ids": tokens(rng)["input_ids"]}


def all_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """No `mask`."""
    return {}


PEERS = {
    "latents": Model("KimiLinearForCausalLM", SMALL, AT, layers=(1,)),
    "latents, biases": Model(
        "KimiLinearForCausalLM",
        SMALL | {"attention_bias": True, "q_lora_rank": 7},
        AT,
        layers=(1,),
    ),
    "a state": Model("KimiLinearForCausalLM", SMALL, AT, layers=(0,), given=whole, meaning=all_keys),
}

REFUSED = {
    "shared heads": (PEERS["latents"], {"num_key_value_heads": 1}, "'num_key_value_heads': expected one of 3"),
    "positions": (PEERS["latents"], {"mla_use_nope": False}, "'mla_use_nope': expected one of True"),
    "another activation": (
        PEERS["latents"],
        {"layer_types": ["full_attention", "linear_attention"], "hidden_act": "gelu"},
        "'hidden_act': expected one of 'silu'",
    ),
}
