"""Command R7B: layers that rotate and have a window, and layers without either."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

OWN = SMALL | {"hidden_size": 16, "pad_token_id": 0, "sliding_window": 3}

PEERS = {
    "every second layer": Model("Cohere2ForCausalLM", OWN | {"sliding_window_pattern": 2}, AT),
    "types": Model(
        "Cohere2ForCausalLM",
        OWN | {"layer_types": ["full_attention", "sliding_attention"], "attention_bias": True},
        AT,
    ),
}

REFUSED = {
    "no window": (PEERS["types"], {"sliding_window": None}, "'sliding_window': expected a window for layer 1"),
    "normed": (PEERS["types"], {"use_qk_norm": True}, "'use_qk_norm': expected one of False"),
}
