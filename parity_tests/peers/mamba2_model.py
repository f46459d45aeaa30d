"""Mamba-2: several groups and one, with the convolution's biases and without."""

from parity_tests.peers import Model
from parity_tests.peers.qwen3_next import real

OWN = {
    "vocab_size": 13,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "expand": 2,
    "num_heads": 6,
    "head_dim": 4,
    "state_size": 5,
    "n_groups": 3,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.125,
    "chunk_size": 4,
}
AT = "backbone.layers.{layer}.mixer"

PEERS = {
    "groups": Model("Mamba2ForCausalLM", OWN, AT, meaning=real),
    "one group, no biases": Model("Mamba2ForCausalLM", OWN | {"n_groups": 1, "use_conv_bias": False}, AT, meaning=real),
}

REFUSED = {
    "steps with a limit": (PEERS["groups"], {"time_step_limit": [0.0, 0.5]}, "'time_step_limit': expected one of"),
    "biases of the projections": (PEERS["groups"], {"use_bias": True}, "'use_bias': expected one of False"),
    "another activation": (PEERS["groups"], {"hidden_act": "gelu"}, "'hidden_act': expected one of 'silu'"),
}
