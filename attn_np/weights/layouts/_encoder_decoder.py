"""Encoder-decoders with BART's names: prefixes, rules, and the fields that their files share."""

from typing import Any

from attn_np.weights.layouts._base import Names
from attn_np.weights.layouts._hf_config import HFConfig

PART_PREFIXES = {
    "encoder": "encoder.layers.{layer}.self_attn.",
    "decoder": "decoder.layers.{layer}.self_attn.",
    "cross": "decoder.layers.{layer}.encoder_attn.",
}
PREFIXES = {part: (f"model.{start}", start) for part, start in PART_PREFIXES.items()}
RULES: dict[Names, tuple[Names, str]] = {
    "w_q": ("q_proj.weight", "(h k) d -> d h k"),
    "w_k": ("k_proj.weight", "(h k) i -> i h k"),
    "w_v": ("v_proj.weight", "(h v) j -> j h v"),
    "w_o": ("out_proj.weight", "o (h v) -> h v o"),
    "b_q": ("q_proj.bias", "(h k) -> h k"),
    "b_v": ("v_proj.bias", "(h v) -> h v"),
    "b_o": ("out_proj.bias", "o -> o"),
}
ELSEWHERE = tuple(
    f"{start}{stack}.{key}"
    for start in ("model.", "")
    for stack in ("encoder", "decoder")
    for key in ("layers.*", "embed_tokens.weight", "embed_positions.weight", "layer_norm.*")
)
# Fields of the model around attention, in all of them.
OTHER_FIELDS = (
    "activation_function",
    "decoder_ffn_dim",
    "decoder_layerdrop",
    "encoder_ffn_dim",
    "encoder_layerdrop",
    "init_std",
    "is_decoder",
    "scale_embedding",
)


def fields(hf: HFConfig, layer: int, part: str) -> dict[str, Any]:
    """Our fields for a block: the encoder and the decoder each have their own numbers of heads and layers."""
    hf.skip(
        *OTHER_FIELDS,
        *(f"{stack}_{count}" for stack in ("encoder", "decoder") for count in ("layers", "attention_heads")),
    )
    stack = "encoder" if part == "encoder" else "decoder"
    hf.check_layer(f"{stack}_layers", layer)
    heads = hf.integer(f"{stack}_attention_heads")
    return {"d_model": hf.integer("d_model"), "num_heads": heads, "causal": part == "decoder"}
