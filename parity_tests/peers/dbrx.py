"""DBRX: numbers limited in size, with several heads of keys and one; the library does not run without a limit."""

from typing import Any

from parity_tests.peers import Model

FFN = {"ffn_hidden_size": 5, "moe_num_experts": 2}
SMALL: dict[str, Any] = {"vocab_size": 11, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32}
SMALL |= {"ffn_config": FFN, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
AT = "transformer.blocks.{layer}.norm_attn_norm.attn"


def small(**attention: Any) -> dict[str, Any]:
    """A model with these fields of attention."""
    return SMALL | {"attn_config": {"rope_theta": 100.0} | attention}


PEERS = {
    "clipped": Model("DbrxForCausalLM", small(kv_n_heads=2, clip_qkv=0.5), AT, shards="8KB"),
    "one head of keys": Model("DbrxModel", small(clip_qkv=2), "blocks.{layer}.norm_attn_norm.attn", layers=(1,)),
}

REFUSED = {
    "two bases": (
        PEERS["clipped"],
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        "'rope_parameters.rope_theta': expected 100.0 as in attn_config",
    ),
    "scaled": (
        PEERS["clipped"],
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "'rope_parameters.rope_type': expected one of 'default'",
    ),
}
