"""GPT-J: neighbours turn, in a part of each head or in the whole."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16, "n_inner": 5}
AT = "transformer.h.{layer}.attn"

PEERS = {
    "half of a head": Model("GPTJForCausalLM", SMALL | {"rotary_dim": 4}, AT, shards="8KB"),
    "whole heads": Model("GPTJModel", SMALL | {"rotary_dim": 8}, "h.{layer}.attn", layers=(1,)),
}

PART = PEERS["half of a head"]
REFUSED = {
    "angles of the whole width": (PART, {"rotary_dim": None}, "'rotary_dim': expected this field"),
    "more than a head": (PART, {"rotary_dim": 10}, "rotary_dim of at most the head's width 8"),
    "fewer layers": (PART, {"n_layer": 1}, "'n_layer': expected more than 1"),
}
