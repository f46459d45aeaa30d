"""GPT-Neo: unscaled scores, with a window and without."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {"vocab_size": 11, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "window_size": 3}
SMALL |= {"max_position_embeddings": 8, "intermediate_size": 5, "attention_types": [[["local", "global"], 1]]}
AT = "transformer.h.{layer}.attn.attention"

PEERS = {
    "both kinds": Model("GPTNeoForCausalLM", SMALL, AT),
    "by itself": Model(
        "GPTNeoModel", SMALL | {"attention_types": [[["global"], 1], [["local"], 1]]}, "h.{layer}.attn.attention"
    ),
}

REFUSED = {
    "fewer layers": (PEERS["both kinds"], {"num_layers": 1}, "'num_layers': expected more than 1"),
    "no kind": (PEERS["both kinds"], {"attention_types": [[["global"], 1]]}, "'attention_types': expected 'global' or"),
}
