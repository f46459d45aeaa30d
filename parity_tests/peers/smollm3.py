"""SmolLM 3: layers that rotate and that do not, by number or by a list, with a window and without."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
WINDOW = {"use_sliding_window": True, "sliding_window": 3}

PEERS = {
    "every second layer": Model("SmolLM3ForCausalLM", OWN | {"no_rope_layer_interval": 2}, AT),
    "a list": Model("SmolLM3ForCausalLM", OWN | {"no_rope_layers": [0, 1], "attention_bias": True}, AT),
    "windows": Model("SmolLM3ForCausalLM", OWN | WINDOW | {"no_rope_layers": [0, 1]}, AT),
    "windows by types": Model(
        "SmolLM3ForCausalLM", OWN | WINDOW | {"layer_types": ["full_attention", "sliding_attention"]}, AT
    ),
}

REFUSED = {
    "a window that is not used": (
        PEERS["windows by types"],
        {"use_sliding_window": False},
        "'use_sliding_window': expected true and sliding_window, for layer 1",
    ),
    "no entry": (PEERS["a list"], {"no_rope_layers": [1]}, "'no_rope_layers': expected a list of 0 and 1"),
}
