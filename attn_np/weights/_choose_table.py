"""Which table of a layout a layer is read or written by."""

from collections.abc import Collection

from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import expand_rules, first_params


def choose_table(name: str, layout: Layout, variant: str | None, keys: Collection[str]) -> str:
    """The name of the table for a variant, or for a layout's only one: of several, the first whose keys are there.

    Raises:
        ValueError: the layout does not have the variant, or has several and none is named.
    """
    variants = list(dict.fromkeys(map(layout.variant_of, layout.tables)))
    tables = layout.tables_of(variants[0] if variant is None and len(variants) == 1 else str(variant))
    if not tables:
        todo = f"pass variant=, one of {', '.join(variants)}"
        raise ValueError(f"weights: expected a variant that layout {name} has, got {variant!r}; {todo}")
    return next((table for table in tables if has_required_keys(layout.tables[table], keys)), tables[0])


def has_required_keys(table: Table, keys: Collection[str]) -> bool:
    """Whether some of the keys end in each name that the table requires."""
    return all(any(key.endswith(name) for key in keys) for name in required_keys(table))


def required_keys(table: Table) -> list[str]:
    """The keys of the parameters that every config has."""
    optional = {name for names in table.flags.values() for name in names}
    rules = expand_rules(table, first_params(table))
    return [key for params, keys, _ in rules if not optional & set(params) for key in keys]
