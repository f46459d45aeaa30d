"""Falcon: one head of keys, several in groups, and one for each query head, with rotary positions and slopes."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6}
SMALL |= {"ffn_hidden_size": 5, "max_position_embeddings": 32}
AT = "transformer.h.{layer}.self_attention"
GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 3, "bias": True}
SLOPES = {"alibi": True, "multi_query": False}
TURNS = {"rope_theta": 100.0, "rope_type": "linear", "factor": 3.0}

PEERS = {
    "one head of keys": Model("FalconForCausalLM", SMALL, AT, shards="8KB"),
    "one head of keys, biases": Model("FalconForCausalLM", SMALL | {"bias": True}, AT, layers=(1,)),
    "groups": Model("FalconForCausalLM", SMALL | GROUPED, AT, layers=(1,)),
    "a head of keys for each": Model(
        "FalconModel", SMALL | {"multi_query": False, "rope_parameters": TURNS}, "h.{layer}.self_attention", layers=(1,)
    ),
    # The other implementation adds the slopes' biases twice: to the scores, and with the mask.
    "slopes": Model("FalconForCausalLM", SMALL | SLOPES | {"bias": True}, AT, attention="sdpa"),
    "slopes, no biases": Model(
        "FalconModel", SMALL | SLOPES, "h.{layer}.self_attention", layers=(1,), attention="sdpa"
    ),
}

REFUSED = {
    "slopes beside groups": (PEERS["groups"], {"alibi": True}, "'alibi': expected false beside 3 heads of keys for 6"),
}
