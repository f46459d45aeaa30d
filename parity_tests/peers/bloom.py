"""BLOOM: slopes for numbers of heads that are a power of two and that are not."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "hidden_size": 12, "n_layer": 2, "n_head": 3}
AT = "{layer}.self_attention"

PEERS = {
    "three heads": Model("BloomForCausalLM", SMALL, f"transformer.h.{AT}", f"transformer.h.{AT}.dense", shards="4KB"),
    "four heads": Model("BloomModel", SMALL | {"n_head": 4}, f"h.{AT}", f"h.{AT}.dense", layers=(1,)),
}

REFUSED = {
    "fewer layers": (PEERS["three heads"], {"n_layer": 1}, "'n_layer': expected more than 1"),
    "queries without biases": (PEERS["three heads"], {"skip_bias_add_qkv": True}, "'skip_bias_add_qkv'"),
}
