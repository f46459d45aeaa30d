"""BART: the encoder, the decoder with other heads, what lies between, and the decoder alone."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.t5 import two_texts, written_keys

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 7,
    "max_position_embeddings": 16,
}
WHOLE, ENCODER, DECODER = "BartForConditionalGeneration", "encoder.layers.{layer}.", "decoder.layers.{layer}."

PEERS = {
    "encoder": Model(WHOLE, SMALL, f"model.{ENCODER}self_attn", part="encoder", given=two_texts, shards="8KB"),
    "decoder": Model(
        WHOLE, SMALL, f"model.{DECODER}self_attn", part="decoder", given=two_texts, meaning=written_keys, layers=(2,)
    ),
    "cross": Model(
        "BartModel",
        SMALL,
        f"{DECODER}encoder_attn",
        part="cross",
        given=two_texts,
        key="key_value_states",
        layers=(0, 2),
    ),
    # The library counts the layers of its cache by the encoder's, which must be as many.
    "decoder alone": Model(
        "BartForCausalLM", SMALL | {"encoder_layers": 3}, f"model.{DECODER}self_attn", part="decoder", layers=(1,)
    ),
}

REFUSED = {
    "fewer layers": (PEERS["encoder"], {"encoder_layers": 1}, "'encoder_layers': expected more than 1"),
    "fewer layers of the decoder": (PEERS["cross"], {"decoder_layers": 1}, "'decoder_layers': expected more than 1"),
    "heads that don't fit": (PEERS["cross"], {"decoder_attention_heads": 5}, "d_model divisible by num_heads"),
}
