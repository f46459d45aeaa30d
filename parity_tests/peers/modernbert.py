"""ModernBERT: windows to both sides, and a base for each kind of layer, as files have it now and had it."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 8,
    "local_attention": 4,
} | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
AT = "layers.{layer}.attn"

PEERS = {
    "both kinds": Model("ModernBertForMaskedLM", SMALL, f"model.{AT}"),
    "biases, other bases": Model(
        "ModernBertModel",
        SMALL
        | {
            "attention_bias": True,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_rope_theta": 300.0,
            "local_rope_theta": 20.0,
        },
        AT,
    ),
}
