"""GPT-NeoX: heads that turn in part, with and without biases."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 24,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
}
AT = "gpt_neox.layers.{layer}.attention"
TURNS = {"rope_theta": 100.0, "partial_rotary_factor": 0.5, "rope_type": "linear", "factor": 3.0}

PEERS = {
    "plain": Model("GPTNeoXForCausalLM", SMALL, AT, shards="8KB"),
    "half of a head, slowly": Model(
        "GPTNeoXForCausalLM", SMALL | {"attention_bias": False, "rope_parameters": TURNS}, AT, layers=(1,)
    ),
    "in one block with the rest": Model(
        "GPTNeoXModel", SMALL | {"use_parallel_residual": False, "is_decoder": True}, "layers.{layer}.attention"
    ),
}

REFUSED = {
    "half of a pair": (PEERS["plain"], {"rope_parameters": TURNS | {"partial_rotary_factor": 0.4}}, "an even number"),
}
