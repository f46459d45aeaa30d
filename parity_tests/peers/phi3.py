"""Phi-3: one projection, a window, and factors for sentences longer than the original length and not longer."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "pad_token_id": 0}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "rope_type": "longrope", "rope_theta": 100.0}

PEERS = {
    "window": Model("Phi3ForCausalLM", OWN | {"sliding_window": 3}, AT),
    "longer": Model(
        "Phi3ForCausalLM", OWN | {"rope_parameters": FACTORS, "original_max_position_embeddings": 4}, AT, layers=(1,)
    ),
    "not longer": Model(
        "Phi3ForCausalLM",
        OWN
        | {
            "rope_parameters": FACTORS | {"partial_rotary_factor": 0.5, "short_factor": [1.5], "long_factor": [3.0]},
            "original_max_position_embeddings": 16,
        },
        AT,
        layers=(0,),
    ),
}
