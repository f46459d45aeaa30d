"""Families with Llama's names: their tables, and the sizes and windows in their `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.llama import LAYOUT as LLAMA

DECODER = LLAMA.tables["decoder"]


def table(
    *,
    rules: Mapping[Names, tuple[Names, str]] | None = None,
    flags: tuple[str, ...] = (),
    free: tuple[str, ...] = (),
    fixed: Mapping[str, Any] | None = None,
    variant: str | None = None,
) -> Table:
    """Llama's table with the biases of a family, and its rules and fields beyond Llama's.

    Args:
        rules: rules of the family that Llama does not have, or has for other keys.
        flags: Llama's flags that the family has; biases that are `fixed` as True are included as well.
        free: fields besides Llama's that leave the weights as they are.
        fixed: fields that have one value in the family.
        variant: the table's variant, if its name is another.
    """
    fixed, rules = dict(fixed or {}), dict(rules or {})
    biases = ((flag, params) for flag, params in DECODER.flags.items() if flag not in flags and not fixed.get(flag))
    dropped = {name for _, params in biases for name in params}
    dropped |= {name for names in rules if not isinstance(names, str) for name in names}
    return replace(
        DECODER,
        rules={names: rule for names, rule in DECODER.rules.items() if names not in dropped} | rules,
        flags={flag: DECODER.flags[flag] for flag in flags},
        free=(*DECODER.free, *free),
        fixed=fixed,
        variant=variant,
    )


def family(
    name: str,
    config: Callable[[HFConfig, int, str], tuple[str, dict[str, Any]]],
    tables: Mapping[str, Table],
    *,
    model_types: tuple[str, ...],
    ignored: tuple[str, ...] = (),
) -> Layout:
    """The layout of a family whose layers have Llama's prefixes."""
    return replace(
        LLAMA,
        origin=f"transformers: {name} and the models that keep its names",
        tables=tables,
        ignored=(*LLAMA.ignored, *ignored),
        model_types=model_types,
        config=config,
    )


def sizes(hf: HFConfig, *, kv_heads: int | None = None, head_dim: int | None = None) -> dict[str, Any]:
    """Our fields for the sizes of a layer.

    Args:
        hf: the model's fields.
        kv_heads: the family's default for key/value heads; as many as query heads if None.
        head_dim: the family's default for a head's width; the model's width over its heads if None.
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


def window(hf: HFConfig, default: int | None = None) -> dict[str, Any]:
    """Our field for a window of `sliding_window` tokens, the query's own included; no field if it is null.

    Args:
        hf: the model's fields.
        default: the family's default; None is no window.
    """
    if hf.is_null("sliding_window") or (default is None and "sliding_window" not in hf):
        return {}
    return {"window": (hf.integer("sliding_window", default) - 1, None)}
