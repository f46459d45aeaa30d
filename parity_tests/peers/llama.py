"""Llama: shared heads, positions that turn, biases, a width of heads of its own."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5}
AT = "model.layers.{layer}.self_attn"


def scaled(**parameters: Any) -> dict[str, Any]:
    """Positions scaled from 3, so that some pairs turn as before, some slower, and the sentence is longer."""
    given = {"rope_theta": 100.0, "original_max_position_embeddings": 3}
    return SMALL | {"head_dim": 6, "rope_parameters": given | parameters}


PEERS = {
    "plain": Model("LlamaForCausalLM", SMALL | {"head_dim": 6, "attention_bias": True}, AT, shards="2KB"),
    "one head of keys": Model("LlamaForCausalLM", SMALL | {"num_attention_heads": 6, "num_key_value_heads": 1}, AT),
    "linear": Model("LlamaForCausalLM", scaled(rope_type="linear", factor=2.0), AT),
    "dynamic": Model("LlamaForCausalLM", scaled(rope_type="dynamic", factor=2.0) | {"max_position_embeddings": 4}, AT),
    "llama3": Model("LlamaForCausalLM", scaled(**LLAMA3), AT),
    "yarn": Model("LlamaForCausalLM", scaled(**YARN), AT),
    "Arcee": Model("ArceeForCausalLM", SMALL | {"hidden_size": 16, "attention_bias": True}, AT, layers=(1,)),
}
