"""GPT-2: one matrix for queries, keys and values, and scales of three kinds."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 8, "n_inner": 5}
AT = "transformer.h.{layer}.attn"
FALLING = {"scale_attn_by_inverse_layer_idx": True}

PEERS = {
    "plain": Model("GPT2LMHeadModel", SMALL, AT, shards="2KB"),
    "without its head": Model("GPT2Model", SMALL | FALLING, "h.{layer}.attn"),
    "unscaled": Model("GPT2LMHeadModel", SMALL | {"scale_attn_weights": False}, AT, layers=(1,)),
    "falling": Model("GPT2LMHeadModel", SMALL | {"scale_attn_weights": False} | FALLING, AT, layers=(1,)),
}

REFUSED = {
    "another block of attention": (PEERS["plain"], {"add_cross_attention": True}, "'add_cross_attention'"),
    "fewer layers": (PEERS["plain"], {"n_layer": 1}, "'n_layer': expected more than 1, for layer 1, got 1"),
}
