"""What families that keep Llama's names have in common: their tables, the sizes and the positions that they state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts._stated import Stated, turned
from attn_np.weights.layouts.llama import LAYOUT as LLAMA

__all__ = ["family", "sizes", "table", "turned", "window"]

ALIKE = LLAMA.tables["decoder"]


def table(
    *,
    rules: Mapping[Names, tuple[Names, str]] | None = None,
    flags: tuple[str, ...] = (),
    free: tuple[str, ...] = (),
    fixed: Mapping[str, Any] | None = None,
    variant: str | None = None,
) -> Table:
    """Llama's table with the biases that a family may have or has, and what it has besides.

    Args:
        rules: what the family keeps besides, or elsewhere.
        flags: Llama's flags that the family has; biases that are `fixed` as True are kept as well.
        free: fields besides Llama's that leave the weights as they are.
        fixed: fields that have one value in the family.
        variant: the variant that the table is of, where its name says something else.
    """
    fixed, placed = dict(fixed or {}), {name for names in rules or () for name in names if not isinstance(names, str)}
    without = {p for flag, own in ALIKE.flags.items() if flag not in flags and not fixed.get(flag) for p in own}
    kept = {names: rule for names, rule in ALIKE.rules.items() if names not in without | placed}
    own = {flag: ALIKE.flags[flag] for flag in flags}
    free = (*ALIKE.free, *free)
    return replace(ALIKE, rules=kept | dict(rules or {}), flags=own, free=free, fixed=fixed, variant=variant)


def family(
    name: str,
    config: Callable[[Stated, int, str], tuple[str, dict[str, Any]]],
    tables: Mapping[str, Table],
    *,
    model_types: tuple[str, ...],
    ignored: tuple[str, ...] = (),
) -> Layout:
    """The layout of a family whose layers stand where Llama's do."""
    return replace(
        LLAMA,
        origin=f"transformers: {name} and the models that keep its names",
        tables=tables,
        ignored=(*LLAMA.ignored, *ignored),
        model_types=model_types,
        config=config,
    )


def sizes(stated: Stated, *, kv_heads: int | None = None, head_dim: int | None = None) -> dict[str, Any]:
    """The sizes of a layer.

    Args:
        stated: the model's fields.
        kv_heads: how many heads of keys there are where the file does not say; as many as of queries by default.
        head_dim: a head's width where the file does not say; what follows from the model's by default.
    """
    width, heads = stated.integer("hidden_size"), stated.integer("num_attention_heads")
    kv_heads = heads if stated.null("num_key_value_heads") or kv_heads is None else kv_heads
    head_dim = width // heads if stated.null("head_dim") or head_dim is None else head_dim
    return {
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": stated.integer("num_key_value_heads", kv_heads),
        "head_dim": stated.integer("head_dim", head_dim),
    }


def window(stated: Stated, otherwise: int | None = None) -> dict[str, Any]:
    """The window of `sliding_window` tokens, the own one included; none where it is null.

    Args:
        stated: the model's fields.
        otherwise: the window of a model whose file does not speak of it; None is none.
    """
    if stated.null("sliding_window") or (otherwise is None and "sliding_window" not in stated):
        return {}
    return {"window": (stated.integer("sliding_window", otherwise) - 1, None)}
