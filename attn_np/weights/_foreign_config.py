"""The config of a layer in a foreign file: from the `config.json` beside it, the caller's fields, and the shapes."""

import os
from collections.abc import Mapping
from typing import Any

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights._check import Request, require_agreement
from attn_np.weights._errors import ConfigMismatchError, WeightFileError, require_same_keys
from attn_np.weights._layer_prefixes import LayerPrefixes
from attn_np.weights._shards import OpenFile
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import TRAINING_FIELDS, canonical, differences, infer
from attn_np.weights.layouts._hf_config import CONFIG, HFConfig, read_hf_config

# Fields that a caller may give for a layer whose model states the rest.
CALLER_FIELDS = ("max_positions",)


def layer_config(
    hf: HFConfig, layout: Layout, layer: int, part: str, caller_fields: Mapping[str, Any] | None = None
) -> tuple[str, Config]:
    """The table and the config of a layer, from a family's `config.json` and from the caller's fields.

    Raises:
        ConfigMismatchError: a field that cannot be represented, or one with another value than the model's.
        TypeError, ValueError: a caller's field that the variant does not have, or that cannot be right.
    """
    if part in ("", "encoder"):
        hf.check_layer("num_hidden_layers", layer)
    if layout.table_and_fields is None:
        raise ValueError(f"weights: expected a layout with a {CONFIG}, got {layout.origin}; use load")
    try:
        table, fields = layout.table_and_fields(hf, layer, part)
        config = contract.config(layout.variant_of(table), **fields)
    except WeightFileError:
        raise
    except (ValueError, TypeError, ZeroDivisionError) as error:
        fix = "build the layer by hand, or use the library the model was made for"
        raise ConfigMismatchError(hf.file, None, "a possible layer", str(error)[:400], fix) from None
    caller_fields = dict(caller_fields or {})
    complete = contract.config(config.variant, **(config.as_dict() | caller_fields))
    model_fields = {*fields, *layout.tables[table].fixed} - {*TRAINING_FIELDS}
    # A family that says how fast heads rotate says how much of them, if only by leaving it out.
    model_fields |= {"rotary_dim"} if "rope_base" in fields else set()
    for name in differences(config, complete):
        if name in model_fields:
            fix = f"leave {name}= out, or change it in a copy of the layer"
            expected = f"{getattr(config, name)!r}, as the model has it"
            raise ConfigMismatchError(hf.file, name, expected, repr(caller_fields[name]), fix)
    return table, complete


def family_config(file: str, layout: Layout, layer: int, part: str) -> tuple[str, Config] | None:
    """The table and the config of a layer, from the `config.json` beside the file; None without one of this family.

    Raises:
        ConfigMismatchError: it cannot be read, or has a field that is unknown or cannot be represented.
    """
    path = sidecar_path(file)
    if layout.table_and_fields is None or not os.path.exists(path):
        return None
    hf = read_hf_config(path)
    if hf.get("model_type") not in layout.model_types:
        return None
    table_and_config = layer_config(hf, layout, layer, part)
    hf.refuse_unread(fix="name those that leave attention as it is to load_pretrained, as allow=")
    return table_and_config


def merge_caller_fields(file: str, layout_name: str, table: Table, config: Config, request: Request) -> Config:
    """A model's config with the caller's fields, which must agree with it if they are not CALLER_FIELDS.

    Raises:
        ConfigMismatchError: the caller's layer, variant or fields differ from the model's.
        TypeError: a field that the variant does not have.
    """
    if request.target_variant not in (None, config.variant):
        fix = "leave variant= out, or move the file to another folder"
        expected = f"{config.variant!r} as in its {CONFIG}"
        raise ConfigMismatchError(file, "variant", expected, repr(request.target_variant), fix)
    require_table_fields(file, layout_name, table, config.variant, request.fields)
    caller_fields = {
        field: value for field, value in request.fields.items() if field in (*TRAINING_FIELDS, *CALLER_FIELDS)
    }
    if request.config is not None:
        caller_fields |= {field: getattr(request.config, field) for field in CALLER_FIELDS if field in config.fields()}
    config = contract.config(config.variant, **(config.as_dict() | caller_fields))
    for field, value in request.fields.items():
        if differences(config, contract.config(config.variant, **(config.as_dict() | {field: value}))):
            raise sidecar_mismatch(file, field, getattr(config, field), value)
    require_agreement(sidecar_path(file), config, Request(request.config))
    return config if request.config is None else request.config


def merge_sidecar_fields(
    file: str, layout_name: str, layout: Layout, table: Table, variant: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The caller's config fields and those of the `config.json` beside the file, which must agree.

    Raises:
        ConfigMismatchError: a field that the layout does not have, or one with two values.
    """
    sidecar = sidecar_fields(file, layout)
    require_table_fields(file, layout_name, table, variant, fields)
    for field, value in fields.items():
        if sidecar.get(field, value) != value:
            raise sidecar_mismatch(file, field, sidecar[field], value)
    return sidecar | dict(fields)


def infer_config(
    file: OpenFile, layout: Layout, table: Table, variant: str, prefix: LayerPrefixes, known: Mapping[str, Any]
) -> Config:
    """The config from the fields that are known and from the shapes of the tensors under a layer's prefix.

    Raises:
        ConfigMismatchError, MissingKeysError: a base of rotary positions that is not known, or a key that is missing.
    """
    if layout.table_and_fields is not None and "rope_base" in table.free and "rope_base" not in known:
        # The weights look the same for every base.
        fix = f"put the model's {CONFIG} beside the file, or pass rope_base= and its other fields of positions"
        expected = f"a {CONFIG} of this family beside it, or this field"
        raise ConfigMismatchError(file.path, "rope_base", expected, "none", fix)
    shapes = {
        key[len(prefix.this_layer) :]: file.entries[key].shape
        for key in file.entries
        if key.startswith(prefix.this_layer)
    }
    outside = {key: prefix.key(table, key) for key in (*table.shared, *table.stack_keys)}
    shapes |= {key: file.entries[name].shape for key, name in outside.items() if name in file.entries}
    fields = infer(table, shapes, known)
    missing = [prefix.key(table, key) for key in table.required_keys() if key not in shapes]
    if missing:
        present = [prefix.key(table, key) for key in shapes]
        require_same_keys(file.path, [*missing, *present], present)
    return canonical(contract.config(variant, **fields))


def require_table_fields(file: str, layout_name: str, table: Table, variant: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields of the variant that the layout does not have.

    Raises:
        ConfigMismatchError: naming the first.
    """
    for field, value in fields.items():
        if field in contract.get(variant).Config.fields() and field not in table.fields():
            fix = f"leave it out; {layout_name} takes {', '.join(table.fields())}"
            raise ConfigMismatchError(file, field, f"a field that {layout_name} has", f"{field}={value!r}", fix)


def sidecar_fields(file: str, layout: Layout) -> dict[str, Any]:
    """The config fields in the `config.json` beside the file, for layouts that have one."""
    path = sidecar_path(file)
    if not layout.sidecar or not os.path.exists(path):
        return {}
    hf = read_hf_config(path)
    return {ours: hf.get(theirs) for theirs, ours in layout.sidecar.items() if theirs in hf}


def sidecar_path(file: str) -> str:
    """The path of a `config.json` beside a file."""
    return os.path.join(os.path.dirname(file), CONFIG)


def sidecar_mismatch(file: str, field: str, value: Any, got: Any) -> ConfigMismatchError:
    fix = f"leave {field}= out, or move the file away from that {CONFIG}"
    return ConfigMismatchError(file, field, f"{value!r} as in its {CONFIG}", repr(got), fix)
