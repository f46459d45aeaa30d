"""Hunyuan: norms after the rotation, a base that grows with alpha, and the mixture of experts."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"head_dim": 6, "rms_norm_eps": 0.125}
ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}

PEERS = {
    "dense": Model("HunYuanDenseV1ForCausalLM", OWN | {"attention_bias": True}, AT),
    "alpha": Model("HunYuanDenseV1ForCausalLM", OWN | {"rope_parameters": ALPHA, "max_position_embeddings": 4}, AT),
    "dynamic": Model(
        "HunYuanDenseV1ForCausalLM",
        OWN | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}},
        AT,
        layers=(1,),
    ),
    "experts": Model(
        "HunYuanMoEV1ForCausalLM",
        OWN | {"num_experts": 2, "moe_topk": 1, "experts_implementation": "eager", "rope_parameters": ALPHA},
        AT,
    ),
}
