"""Files in the layouts of other libraries: a layer read from one, or written as one."""

from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights._cast import DTYPES
from attn_np.weights._check import LayerWeights, Request, checked_cast, common_dtype, require_agreement
from attn_np.weights._errors import ConfigMismatchError, require_shape
from attn_np.weights._foreign_config import (
    infer_config,
    merge_caller_fields,
    merge_fields_with_sidecar,
    read_family_sidecar,
)
from attn_np.weights._layer_prefixes import (
    LayerPrefixes,
    checked_ignored_keys,
    find_part,
    layer_prefixes_for,
    locate_layer,
)
from attn_np.weights._safetensors import write_tensors
from attn_np.weights._shards import OpenFile, RenamedFile
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import AppliedRule, letter_sizes_agree, rules_for_all_params, unsupported_fields


def read_foreign(
    file: OpenFile, layout_name: str, layer: int | None, part: str | None, prefix: str, request: Request
) -> LayerWeights:
    """A layer of a file in a foreign layout.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        ValueError, TypeError: arguments that cannot be right.
    """
    layout = layouts.get(layout_name)
    if any(layout.key_as_in_tables(key) != key for key in file.entries):
        file, prefix = RenamedFile(file, layout.key_as_in_tables), layout.key_as_in_tables(prefix)
    table_name = find_table_name(layout_name, layout, request.target_variant, file, prefix)
    table, variant = layout.tables[table_name], layout.variant_of(table_name)
    part = find_part(layout, part)
    layer_prefixes = locate_layer(file, layout, table, layer, part, prefix)
    name_and_config = read_family_sidecar(file.path, layout, layer_prefixes.layer, part)
    if name_and_config is not None:
        table_name, config, kin = name_and_config
        table = layout.tables[table_name]
        config = merge_caller_fields(file.path, layout_name, table, config, request)
        layer_prefixes = locate_layer(file, layout, table, layer, part, prefix)
        return read_by_table(file, layout_name, table, config, layer_prefixes, prefix, request, attention_only=kin)[0]
    known = merge_fields_with_sidecar(file.path, layout_name, layout, table, variant, request.fields)
    if request.into_config is None:
        config = infer_config(file, layout, table, variant, layer_prefixes, known)
    else:
        config = request.into_config
        require_agreement(file.path, contract.config(variant, **(config.as_dict() | known)), Request(config))
    return read_by_table(file, layout_name, table, config, layer_prefixes, prefix, request)[0]


def read_by_table(
    file: OpenFile,
    layout_name: str,
    table: Table,
    config: Config,
    layer_prefixes: LayerPrefixes,
    prefix: str,
    request: Request,
    *,
    attention_only: bool = False,
) -> tuple[LayerWeights, list[str], list[str]]:
    """A layer, read by a table for a config; the keys it was read from, and the layer's keys that are ignored.

    With `attention_only`, keys outside of this layer's attention may have any name.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
    """
    rules = rules_or_mismatch(file.path, layout_name, table, config)
    keys = {
        key: layer_prefixes.key_in_file(table, key)
        for applied in rules
        for key in applied.keys
        if key not in table.absent
    }
    ignored = checked_ignored_keys(
        file,
        layouts.get(layout_name),
        list(keys.values()),
        prefix,
        layer_prefixes.layer_prefix,
        config.variant,
        table.attention_prefix() if attention_only else None,
    )
    for applied in rules:
        for key in (key for key in applied.keys if key in keys):
            require_shape(file.path, keys[key], applied.key_shape(), file.entries[keys[key]].shape, applied.key_axes())
    dtypes = {key: file.entries[key].dtype for key in keys.values()}
    dtype = common_dtype(file.path, dtypes, request)
    values = {}
    # The largest first: their temporary arrays are freed while few values are held, so the peak is lower.
    for applied in sorted(rules, key=lambda rule: -prod(rule.key_shape()) * len(rule.keys)):
        values |= applied.to_params(
            {
                key: checked_cast(file.path, keys[key], file.read(keys[key]), dtype, request.finite)
                if key in keys
                else np.zeros(applied.key_shape(), DTYPES[str(dtype)])
                for key in applied.keys
            }
        )
    weights = LayerWeights(file.path, config, dtype, {key: values.pop(key) for key in config.shapes()})
    return weights, list(keys.values()), ignored


def write_foreign(
    path: str,
    config: Config,
    values: Mapping[str, np.ndarray],
    layout_name: str,
    layer: int | None,
    part: str | None,
    prefix: str,
) -> None:
    """Write a layer in a foreign layout.

    Raises:
        ConfigMismatchError: a config or parameters that the layout cannot represent.
        ValueError: no foreign layout, or a layer or part that it does not have.
    """
    layout = layouts.get(layout_name)
    if layout.own_variant is not None:
        fix = "use attn_np.weights.convert and write its result"
        raise ValueError(f"weights: expected a foreign layout to write, got {layout_name!r}; {fix}")
    table = layout.tables[layout.table_name_for(config) or find_table_name(layout_name, layout, config.variant)]
    unsupported = unsupported_fields(table, config)
    if unsupported:
        got = ", ".join(f"{field}={getattr(config, field)!r}" for field in unsupported)
        raise ConfigMismatchError(path, "config", f"a config that {layout_name} can hold", got, "choose another layout")
    template = layout.prefixes_of(find_part(layout, part))[0]
    if layer is not None and "{layer}" not in template:
        raise ValueError(f"weights: expected no layer=, as this layout has one layer, got {layer!r}; leave it out")
    layer_prefixes = layer_prefixes_for(prefix, template, template.format(layer=layer or 0), layer or 0)
    rules = rules_or_mismatch(path, layout_name, table, config)
    arrays: dict[str, np.ndarray] = {}
    for applied in rules:
        for key, x in applied.to_layout(values).items():
            if key not in table.absent:
                arrays[layer_prefixes.key_in_file(table, key)] = x
            elif any(np.ascontiguousarray(x).view(np.uint8).flat):
                name, fix = applied.params[0], "set it to 0 if the layer does as well without, or choose another layout"
                expected = f"zeros where {layout_name} has no {key}"
                raise ConfigMismatchError(path, name, expected, "other numbers", fix)
    write_tensors(path, arrays, layout.metadata)


def other_layout_fix(variant: str, variants: Collection[str]) -> str:
    """What to do where a layer of one variant is to be written in a layout of others."""
    every = {name: layouts.get(name) for name in layouts.names()}
    our_layouts = [layout for layout in every.values() if layout.own_variant == variant]
    convertible_to = [table_name for layout in our_layouts for table_name in layout.tables if table_name in variants]
    if convertible_to:
        return f"make it {convertible_to[0]} first, by attn_np.weights.convert"
    names = [name for name, layout in every.items() if layout.own_variant is None and layout.tables_of(variant)]
    return f"choose another layout: {' or '.join(names)}" if names else "no other layout has it; write it in our names"


def find_table_name(
    layout_name: str, layout: Layout, variant: str | None, file: OpenFile | None = None, prefix: str = ""
) -> str:
    """The name of the table for a variant; `variant` may be None if the layout has one or sets `variant_from_tensors`.

    Of the tables whose required keys are all in the file, the one that requires most; of those that require as many,
    and with `variant_from_tensors` of all, the sizes must agree as well. If none fits, the first.

    Raises:
        ValueError: the layout does not have the variant, or has several and none is named.
    """
    variants = list(dict.fromkeys(map(layout.variant_of, layout.tables)))
    if variant is None and layout.variant_from_tensors:
        table_names = list(layout.tables)
    else:
        table_names = layout.tables_of(variants[0] if variant is None and len(variants) == 1 else str(variant))
    if not table_names:
        fix = f"pass variant=, one of {', '.join(variants)}"
        fix = fix if file is not None or variant is None else other_layout_fix(variant, variants)
        raise ValueError(f"weights: expected a variant that layout {layout_name} has, got {variant!r}; {fix}")
    keys = [key for key in file.entries if key.startswith(prefix)] if file is not None else []
    fitting: dict[str, dict[str, str]] = {}
    for table_name in table_names:
        key_of = {
            end: next((key for key in keys if key.endswith(end)), "")
            for end in layout.tables[table_name].required_keys()
        }
        if file is not None and all(key_of.values()):
            fitting[table_name] = key_of
    most = max(map(len, fitting.values()), default=0)
    best = [name for name, key_of in fitting.items() if len(key_of) == most]
    asked = [*fitting] if layout.variant_from_tensors else best if len(best) > 1 else []
    if file is not None and asked:
        shapes = {name: {end: file.entries[key].shape for end, key in fitting[name].items()} for name in asked}
        best = [name for name in asked if letter_sizes_agree(layout.tables[name], shapes[name])]
    return max(best, key=lambda name: len(fitting[name]), default=table_names[0])


def rules_or_mismatch(path: str, layout_name: str, table: Table, config: Config) -> list[AppliedRule]:
    """The rules of a table for a config.

    Raises:
        ConfigMismatchError: a config that the layout cannot represent.
    """
    try:
        return rules_for_all_params(table, config)
    except ValueError as error:
        fix = f"choose another layout than {layout_name}"
        raise ConfigMismatchError(path, "config", f"a config that {layout_name} can hold", str(error), fix) from None
