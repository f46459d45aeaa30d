"""CodeGen: rows in four groups, one head in each or two."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 16, "n_inner": 5}
SMALL |= {"rotary_dim": 2}
AT = "transformer.h.{layer}.attn"

PEERS = {
    "two heads in a group": Model("CodeGenForCausalLM", SMALL, AT),
    "one head in a group": Model("CodeGenModel", SMALL | {"n_head": 4, "rotary_dim": 8}, "h.{layer}.attn", layers=(1,)),
}

REFUSED = {
    "angles of the whole width": (
        PEERS["two heads in a group"],
        {"rotary_dim": None},
        "'rotary_dim': expected this field",
    ),
}
