"""Qwen 2: biases on three of four projections; a window from some layer on, or by the layers' types."""

from parity_tests.peers import Model
from parity_tests.peers.llama import AT, SMALL

WIDER = SMALL | {"hidden_size": 16}
WINDOW = WIDER | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}

PEERS = {
    "whole": Model("Qwen2ForCausalLM", WIDER | {"sliding_window": 3}, AT, layers=(1,)),
    "window": Model("Qwen2ForCausalLM", WINDOW, AT),
    "types": Model("Qwen2ForCausalLM", WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}, AT),
}
