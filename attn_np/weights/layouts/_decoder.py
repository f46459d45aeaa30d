"""Families of decoders as Llama's table and what differs from it, and the sizes and windows in their `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.llama import LAYOUT as LLAMA

DECODER = LLAMA.tables["decoder"]
BIAS_FLAGS = ("qkv_bias", "output_bias")


def table(
    *,
    rules: Mapping[Names, tuple[Names, str]] | None = None,
    flags: tuple[str, ...] = (),
    not_in_weights: tuple[str, ...] = (),
    fixed: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    variant: str | None = None,
) -> Table:
    """Llama's table with the biases of a family, and its rules and fields beyond Llama's.

    Args:
        rules: rules of the family that Llama does not have, or has for other keys.
        flags: Llama's flags that the family has; biases that are `fixed` as True are included as well.
        not_in_weights: further fields that are not in the weights. Llama's own are added, the rotary ones unless
            `rope_base` is fixed.
        fixed: fields that have one value in the family.
        names: parts of Llama's keys to what they are called in the family.
        variant: the table's variant, if its name is another.
    """
    fixed, rules = dict(fixed or {}), dict(rules or {})
    absent_biases = [params for flag, params in DECODER.flags.items() if flag not in flags and not fixed.get(flag)]
    dropped = {name for params in absent_biases for name in params}
    dropped |= {name for names in rules if not isinstance(names, str) for name in names}
    return replace(
        DECODER,
        rules={
            params: (renamed(key, names or {}), pattern)
            for params, (key, pattern) in DECODER.rules.items()
            if params not in dropped
        }
        | rules,
        flags={flag: DECODER.flags[flag] for flag in flags},
        not_in_weights=(*(() if "rope_base" in fixed else DECODER.not_in_weights), *not_in_weights),
        fixed=fixed,
        variant=variant,
    )


def renamed(key: Names, names: Mapping[str, str]) -> Names:
    """A key with the parts of its name replaced, the longest first."""
    for part in sorted(names, key=len, reverse=True):
        key = key.replace(part, names[part]) if isinstance(key, str) else key
    return key


def family(
    model_class: str,
    table_and_fields: Callable[[HFConfig, int, str], tuple[str, dict[str, Any]]],
    tables: Mapping[str, Table],
    *,
    model_types: tuple[str, ...],
    ignored: tuple[str, ...] = (),
    elsewhere: tuple[str, ...] = (),
) -> Layout:
    """The layout of a family whose layers have Llama's prefixes; the last two are keys that Llama does not have."""
    return replace(
        LLAMA,
        origin=f"transformers: {model_class} and the models that keep its names",
        tables=tables,
        ignored=(*LLAMA.ignored, *ignored),
        elsewhere=(*LLAMA.elsewhere, *elsewhere),
        model_types=model_types,
        table_and_fields=table_and_fields,
    )


# Keys of models whose norms have biases.
NORM_BIAS_KEYS = ("input_layernorm.bias", "post_attention_layernorm.bias")


def sizes(hf: HFConfig, *, kv_heads: int | None = None, head_dim: int | None = None) -> dict[str, Any]:
    """Our fields for the sizes of a layer.

    Args:
        hf: the model's fields.
        kv_heads: the default for key/value heads; with None, or null in the file, as many as query heads.
        head_dim: the default for a head's width; with None, or null in the file, the model's width over its heads.
    """
    width, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
    kv_heads = heads if hf.is_null("num_key_value_heads") or kv_heads is None else kv_heads
    head_dim = width // heads if hf.is_null("head_dim") or head_dim is None else head_dim
    return {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": hf.integer("num_key_value_heads", kv_heads),
        "head_dim": hf.integer("head_dim", head_dim),
    }


def biases(hf: HFConfig, *, default: bool = False) -> dict[str, Any]:
    """Our fields for biases, for families whose projections share the flag `attention_bias`."""
    return dict.fromkeys(BIAS_FLAGS, hf.flag("attention_bias", default))


def clip_field(hf: HFConfig) -> dict[str, Any]:
    """Our field for the limit of queries, keys and values; no field if it is null."""
    return {} if hf.get("clip_qkv") is None else {"clip_qkv": hf.number("clip_qkv")}


def skip_rotary(hf: HFConfig) -> dict[str, Any]:
    """Accept rotary fields, which are about other layers; the result is our field for a layer without rotation."""
    hf.skip("rope_parameters", "rope_theta", "rope_scaling")
    return {"rope_base": None}


def is_sliding(hf: HFConfig, layer: int, default: Callable[[int], str]) -> bool:
    """Whether a layer attends within a window, by `layer_types`; `default` gives the type if the field is absent."""
    return hf.layer_type(layer, default, "sliding_attention", "full_attention") == "sliding_attention"


def required_window_field(hf: HFConfig, layer: int, default: int | None = None) -> dict[str, Any]:
    """Our field for the window of a layer that must have one.

    Raises:
        ConfigMismatchError: the file has none.
    """
    return sliding_window_field(hf, default) or hf.refuse("sliding_window", f"a window for layer {layer}", None)


def sliding_window_field(hf: HFConfig, default: int | None = None) -> dict[str, Any]:
    """Our field for a window of `sliding_window` tokens, the query's own included; no field if it is null.

    Args:
        hf: the model's fields.
        default: the family's default; None is no window.
    """
    if hf.is_null("sliding_window") or (default is None and "sliding_window" not in hf):
        return {}
    return {"window": (hf.integer("sliding_window", default) - 1, None)}
