"""How the fields of types are read that are kin to a family but do not share its fields."""

from collections.abc import Callable
from typing import Any

from attn_np.weights.layouts import clip, deepseek_v3, qwen2
from attn_np.weights.layouts._decoder import (
    biases,
    is_sliding,
    required_window_field,
    sizes,
    skip_rotary,
    sliding_window_field,
)
from attn_np.weights.layouts._hf_config import HFConfig, rotary, rotary_of_layer_type, whole_head_rotary

Reader = Callable[[HFConfig, int, str], tuple[str, dict[str, Any]]]
NORM_OF_ALL = {"norm": "rms", "norm_over": "all", "norm_weight": "own"}


def plain(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """A decoder whose projections share one flag for their biases, whole heads rotated, without a window."""
    fields: dict[str, Any] = sizes(hf) | biases(hf)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


def normed(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `plain`, with RMS norms of the heads of queries and keys."""
    table, fields = plain(hf, layer, part)
    return table, fields | {"norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-6)}


def windowed_normed(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `normed`, with a window in the layers that `layer_types` says, or from `max_window_layers`."""
    first, window = hf.integer("max_window_layers", 0), sliding_window_field(hf, 4096)
    table, fields = normed(hf, layer, part)
    kind = "sliding_attention" if window and layer >= first else "full_attention"
    return table, fields | (required_window_field(hf, layer, 4096) if is_sliding(hf, layer, lambda n: kind) else {})


def switched_window(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `normed`, with a window in every layer if `use_sliding_window` is on."""
    used, window = hf.flag("use_sliding_window", False), sliding_window_field(hf, 4096)
    table, fields = normed(hf, layer, part)
    return table, fields | (window if used else {})


def windows_by_type(pattern: Callable[[int], str], window: int) -> Reader:
    """A decoder without biases, with a window in the layers that `layer_types` says, by default those of a pattern."""

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        fields = sizes(hf)
        fields |= whole_head_rotary(hf, fields["head_dim"])
        if is_sliding(hf, layer, pattern):
            return "decoder", fields | required_window_field(hf, layer, window)
        hf.skip("sliding_window")
        return "decoder", fields

    return read


def partly_rotated(share: float) -> Reader:
    """As `plain`, with a share of each head rotated."""

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        fields: dict[str, Any] = sizes(hf) | biases(hf)
        return "decoder", fields | rotary(hf, fields["head_dim"], share=share)

    return read


def output_bias_apart(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `plain`, with a flag of its own for the bias of the output."""
    table, fields = plain(hf, layer, part)
    return table, fields | {"output_bias": hf.flag("attention_out_bias", False)}


def windows_that_rotate(every: int, window: int, *, pattern_field: bool = True) -> Reader:
    """As `normed`: a layer with a window rotates, one without does not if others have one.

    Args:
        every: each layer of this number has no window, unless the file says otherwise.
        window: the default.
        pattern_field: whether the type has a field for that number.
    """

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        fields: dict[str, Any] = sizes(hf) | biases(hf) | {"norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-6)}
        pattern = hf.get("sliding_window_pattern", every) if pattern_field else every
        if isinstance(pattern, str) and pattern:  # a letter for each layer: L is local
            sliding = pattern[layer % len(pattern)] == "L"
        else:
            number = hf.integer("sliding_window_pattern", every) if pattern_field else every
            sliding = number > 0 and (layer + 1) % number != 0
        none = hf.is_null("sliding_window")
        if is_sliding(hf, layer, lambda n: "sliding_attention" if sliding and not none else "full_attention"):
            return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | required_window_field(
                hf, layer, window
            )
        hf.skip("sliding_window")
        return "decoder", fields | (whole_head_rotary(hf, fields["head_dim"]) if none else skip_rotary(hf))

    return read


def typed_windows(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """Qwen 2 whose windows are those that `layer_types` says: without it releases of the library differ."""
    if hf.flag("use_sliding_window", False) and "layer_types" not in hf:
        hf.refuse("layer_types", "a type for each layer, as use_sliding_window is on", None)
    return qwen2.table_and_fields(hf, layer, part)


def positions_by_type(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `normed`, with positions for each type of layers, of which some have a window."""
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-6)}
    sliding = is_sliding(hf, layer, lambda n: "full_attention")
    kind = "sliding_attention" if sliding else "full_attention"
    fields |= rotary_of_layer_type(hf, fields["head_dim"], kind)
    hf.skip("sliding_window")
    return "decoder", fields | (required_window_field(hf, layer, 1024) if sliding else {})


def all_normed_share(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """Without biases, one norm over the queries of all heads and one over the keys of all, a share rotated."""
    fields: dict[str, Any] = sizes(hf) | NORM_OF_ALL | {"norm_eps": hf.number("rms_norm_eps", 1e-6)}
    width = hf.integer("rotary_dim", fields["head_dim"])
    return "decoder", fields | rotary(hf, fields["head_dim"], share=width / fields["head_dim"])


def one_in(period: str, offset: str, defaults: tuple[int, int]) -> Reader:
    """A decoder without biases and rotation in every so many layers; the others are recurrent."""

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        every, first = hf.integer(period, defaults[0]), hf.integer(offset, defaults[1])
        if layer % every != first:
            expected = (
                f"a layer that attends, {first} and every {every} after it, as others are not read from this type"
            )
            hf.refuse_layer(offset, expected, layer)
        return "decoder", sizes(hf) | {"rope_base": None}

    return read


def some_attend(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `plain`, half of each head rotated, in the layers of a list; the others are recurrent."""
    attending = hf.get("attn_layer_indices", [])
    words = f"layer {layer} among them, as others are not read from this type"
    if not isinstance(attending, list):
        hf.refuse("attn_layer_indices", words, attending)
    if layer not in attending:
        hf.refuse_layer("attn_layer_indices", words, attending)
    fields: dict[str, Any] = sizes(hf) | biases(hf)
    return "decoder", fields | rotary(hf, fields["head_dim"], share=0.5)


def attending_granite(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """Granite in the layers that attend, with rotation or without."""
    hf.skip("embedding_multiplier", "residual_multiplier", "logits_scaling")
    attend_or_refuse(hf, layer)
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"scale": hf.number("attention_multiplier", 1.0)}
    if hf.only("position_embedding_type", "rope", "nope") == "rope":
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])
    return "decoder", fields | skip_rotary(hf)


def attend_or_refuse(hf: HFConfig, layer: int) -> None:
    """Refuse a layer that is recurrent, by `layer_types` or `layers_block_type`."""
    types = hf.get("layer_types") or hf.get("layers_block_type") or []
    hf.skip("layer_types", "layers_block_type")
    kind = types[layer] if isinstance(types, list) and layer < len(types) else None
    if kind not in ("full_attention", "attention"):
        refuse = hf.refuse_layer if kind in ("linear_attention", "mamba") else hf.refuse
        refuse("layer_types", f"'full_attention' for layer {layer}, as others are not read from this type", kind)


def attending_olmo(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """OLMo 2 in the layers that attend, with rotation if there are parameters for it."""
    attend_or_refuse(hf, layer)
    fields: dict[str, Any] = sizes(hf) | biases(hf) | NORM_OF_ALL | {"norm_eps": hf.number("rms_norm_eps", 1e-6)}
    parameters = hf.nested("rope_parameters") if "rope_parameters" in hf else hf
    if parameters.is_null("rope_theta"):
        parameters.skip("rope_type")
        return "decoder", fields | skip_rotary(hf)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


def multiplied_keys(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """As `plain`, with a factor on the keys, and so on the scores."""
    fields: dict[str, Any] = sizes(hf) | biases(hf)
    fields |= {"scale": fields["head_dim"] ** -0.5 * hf.number("key_multiplier", 1.0)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


def scaled_by_width(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """Granite whose scale is that of its heads unless the file has another."""
    hf.skip("embedding_multiplier", "residual_multiplier", "logits_scaling")
    fields: dict[str, Any] = sizes(hf) | biases(hf)
    fields |= {"scale": hf.number("attention_multiplier", fields["head_dim"] ** -0.5)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


def windowed_cohere(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """Cohere's Command A with experts: layers with a window rotate, and the first ones if they are dense."""
    every, dense = hf.integer("sliding_window_pattern", 4), hf.integer("first_k_dense_replace", 0)
    kinds = hf.get("mlp_layer_types")
    is_dense = kinds[layer] == "dense" if isinstance(kinds, list) and layer < len(kinds) else layer < dense
    hf.skip("logit_scale", "prefix_dense_intermediate_size", "expert_selection_fn")
    hf.skip("shared_expert_combination_strategy")
    first = hf.integer("prefix_dense_sliding_window_pattern", 1)
    fields: dict[str, Any] = sizes(hf) | biases(hf) | {"rope_layout": "interleaved"}

    def default(n: int) -> str:
        pattern, number = (first, n) if n < dense else (every, n - dense)
        return "sliding_attention" if (number + 1) % pattern else "full_attention"

    if is_sliding(hf, layer, default):
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"]) | required_window_field(hf, layer, 4096)
    hf.skip("sliding_window")
    rotated = is_dense and first == 1
    return "decoder", fields | (whole_head_rotary(hf, fields["head_dim"]) if rotated else skip_rotary(hf))


def towers_in_both_directions(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """CLIP's towers, of which none is causal."""
    table, fields = clip.table_and_fields(hf, layer, part, wide=True)
    return table, fields | {"causal": False}


def one_tower(name: str) -> Reader:
    """One of CLIP's towers alone, whose fields are the file's own."""

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        if part != name:
            hf.refuse("model_type", f"a model with part={part!r}, as this one is part={name!r} alone")
        return "mha", clip.fields(hf, layer, part) | {"causal": part == "text"}

    return read


def latents_with_values_of_a_head(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """DeepSeek's latents, with values as wide as the model divided by its heads, unless the file says otherwise."""
    width = hf.integer("v_head_dim", hf.integer("hidden_size") // hf.integer("num_attention_heads"))
    table, fields = deepseek_v3.table_and_fields(hf, layer, part)
    return table, fields | {"value_head_dim": width}


def no_output_bias(positions: Callable[[HFConfig, int], dict[str, Any]], **fixed: Any) -> Reader:
    """As `plain`, without a bias of the output, with positions by a function and fields that are fixed."""

    def read(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        fields: dict[str, Any] = sizes(hf) | {"qkv_bias": hf.flag("attention_bias", False)} | fixed
        return "decoder", fields | positions(hf, fields["head_dim"])

    return read


def every_fourth_whole(layer: int) -> str:
    return "full_attention" if layer % 4 == 0 else "sliding_attention"
