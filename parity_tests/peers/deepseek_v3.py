"""DeepSeek-V3: queries out of a latent and not, neighbours that turn, a scale that grows with the length."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL, YARN

OWN: dict[str, Any] = SMALL | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 7,
    "q_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 6,
    "v_head_dim": 2,
    "first_k_dense_replace": 2,
}
LONGER = YARN | {"rope_theta": 100.0, "original_max_position_embeddings": 3, "mscale": 1.5, "mscale_all_dim": 0.75}

PEERS = {
    "latent": Model("DeepseekV3ForCausalLM", OWN | {"rope_parameters": LONGER}, AT),
    "longer, as others are": Model(
        "DeepseekV3ForCausalLM",
        OWN | {"rope_parameters": {name: x for name, x in LONGER.items() if not name.startswith("mscale")}},
        AT,
        layers=(1,),
    ),
    "longer, by a factor": Model(
        "DeepseekV3ForCausalLM", OWN | {"rope_parameters": LONGER | {"attention_factor": 1.25}}, AT, layers=(1,)
    ),
    "direct": Model("DeepseekV3ForCausalLM", OWN | {"q_lora_rank": None}, AT, layers=(1,)),
    "halves": Model("DeepseekV3ForCausalLM", OWN | {"rope_interleave": False}, AT, layers=(1,)),
    "halves, direct": Model(
        "DeepseekV3ForCausalLM", OWN | {"rope_interleave": False, "q_lora_rank": None}, AT, layers=(1,)
    ),
    "biases": Model("DeepseekV3ForCausalLM", OWN | {"attention_bias": True}, AT, layers=(1,)),
}
