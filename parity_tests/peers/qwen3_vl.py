"""Qwen3-VL: normed queries and keys, and pairs dealt to time, row and column in turn; alone and beside what sees."""

from parity_tests.peers.qwen2_vl import AT, SECTIONS, TEXT, VISION, WHOLE, model

OWN = TEXT | {"head_dim": 14, "rms_norm_eps": 0.125}
IN_TURN = SECTIONS | {"mrope_section": [4, 1, 2]}

PEERS = {
    "text": model("Qwen3VLTextModel", OWN | {"rope_parameters": IN_TURN}, AT),
    "biases": model(
        "Qwen3VLTextModel",
        OWN | {"attention_bias": True, "rope_parameters": IN_TURN | {"mrope_section": [3, 2, 2]}},
        AT,
        layers=(1,),
    ),
    "beside the part that sees": model(
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": OWN | {"rope_parameters": IN_TURN | {"mrope_interleaved": True}},
            "vision_config": VISION | {"deepstack_visual_indexes": [0]},
        },
        WHOLE,
    ),
}

REFUSED = {
    "pairs that the last axis does not get": (
        PEERS["text"],
        {"rope_parameters": IN_TURN | {"mrope_section": [1, 2, 4]}},
        r"rope_sections of at most \(7, 2, 2\), as the axes take turns",
    ),
}
