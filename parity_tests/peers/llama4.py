"""Llama 4: layers in chunks, and layers of one piece without rotation, whose queries grow with their position."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, LLAMA3, SMALL

OWN: dict[str, Any] = SMALL | {
    "head_dim": 6,
    "intermediate_size_mlp": 5,
    "num_local_experts": 2,
    "moe_layers": [],
    "rms_norm_eps": 0.125,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 4,
    "floor_scale": 2,
    "attn_scale": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}

PEERS = {
    "both kinds": Model("Llama4ForCausalLM", OWN, AT),
    "no norm, no growth, biases": Model(
        "Llama4ForCausalLM",
        OWN | {"use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True},
        AT,
    ),
    "scaled": Model(
        "Llama4ForCausalLM",
        OWN
        | {"rope_parameters": LLAMA3 | {"rope_theta": 100.0, "original_max_position_embeddings": 3}}
        | {"layer_types": ["full_attention", "chunked_attention"]},
        AT,
    ),
}

REFUSED = {
    "chunks of no size": (
        PEERS["scaled"],
        {"attention_chunk_size": None},
        "'attention_chunk_size': expected the size of chunks, for layer 1",
    ),
}
