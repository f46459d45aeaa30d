"""StableLM: a quarter of a head turns, with and without biases."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 32}

PEERS = {
    "a quarter": Model("StableLmForCausalLM", OWN, AT),
    "half, biases": Model(
        "StableLmForCausalLM",
        OWN
        | {
            "use_qkv_bias": True,
            "use_parallel_residual": True,
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
        AT,
        layers=(1,),
    ),
    "normed": Model("StableLmForCausalLM", OWN | {"qk_layernorm": True, "layer_norm_eps": 0.125}, AT),
}
