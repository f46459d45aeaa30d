"""The config of a layer in a foreign file: from the `config.json` beside it, the caller's fields, and the shapes."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attn_np import contract
from attn_np.contract import Config
from attn_np.contract._base import is_integer
from attn_np.weights._check import Request, require_agreement
from attn_np.weights._errors import ConfigMismatchError, WeightFileError, require_same_keys
from attn_np.weights._layer_prefixes import LayerPrefixes
from attn_np.weights._shards import OpenFile
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import TRAINING_FIELDS, canonical, differences, infer
from attn_np.weights.layouts._hf_config import CONFIG, HFConfig, read_hf_config

# Fields, beside TRAINING_FIELDS, in which `load` lets a caller differ from the `config.json` beside the file.
OVERRIDABLE_FIELDS = ("max_positions",)
# Fields of which a family's reader that does not state them says nothing: a decoder may serve as an encoder.
UNSTATED_FIELDS = ("causal",)
# What families call the number of their positions.
MAX_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


def table_name_and_config(
    hf: HFConfig,
    layout: Layout,
    layer: int,
    part: str,
    caller_fields: Mapping[str, Any] | None = None,
    *,
    foreign: bool = False,
) -> tuple[str, Config]:
    """The name of the table and the config of a layer, from a family's `config.json` and from the caller's fields.

    With `foreign` the file is of another family, whose defaults are not known: the caller gives what it leaves out.

    Raises:
        ConfigMismatchError: a field that cannot be represented, or one with another value than the model's.
        TypeError, ValueError: a caller's field that the variant does not have, or that cannot be right.
    """
    if part in ("", "encoder"):
        hf.check_layer("num_hidden_layers", layer)
    if layout.table_and_fields is None:
        raise ValueError(f"weights: expected a layout with a {CONFIG}, got {layout.origin}; use load")
    try:
        table_name, config, fields = described(hf, layout, layer, part)
    except WeightFileError:
        raise
    except ZeroDivisionError:
        raise ConfigMismatchError(
            hf.path, zero_divisor(hf, layout, layer, part), "a number above 0", "0", "correct the file"
        ) from None
    except (ValueError, TypeError) as error:
        fix = "build the layer by hand, or use the library the model was made for"
        raise ConfigMismatchError(hf.path, None, "a possible layer", str(error)[:400], fix) from None
    caller_fields = dict(caller_fields or {})
    assumed = assumed_fields(hf, layout, layer, part, table_name, config) if foreign else {}
    refuse_assumed_fields(hf, config, {ours: key for ours, key in assumed.items() if ours not in caller_fields})
    complete = contract.config(config.variant, **(config.as_dict() | caller_fields))
    model_fields = {*fields, *layout.tables[table_name].fixed}
    # A family that states rope_base states rotary_dim too: left out, the whole head is rotated.
    model_fields |= {"rotary_dim"} if "rope_base" in fields else set()
    if not foreign:  # of its own family a file says everything, with what it leaves out
        model_fields |= {*config.fields()} - {*UNSTATED_FIELDS, *config.not_in_results}
    model_fields -= {*TRAINING_FIELDS, *OVERRIDABLE_FIELDS, *assumed}
    for name in differences(config, complete):
        if name in model_fields:
            fix = f"leave {name}= out, or change it in a copy of the layer"
            expected = f"{getattr(config, name)!r}, as the model has it"
            raise ConfigMismatchError(hf.path, name, expected, repr(caller_fields[name]), fix)
    return table_name, complete


def with_max_positions(hf: HFConfig, table: Table, config: Config) -> Config:
    """A config that takes the positions that the model has, so that a call may pass them, if it uses positions."""
    uses = any(getattr(config, name, None) is not None for name in ("rope_base", "temperature_growth"))
    if not uses or "max_positions" not in table.fields() or getattr(config, "max_positions", 0) is not None:
        return config
    counts = (hf.get(key) for key in MAX_POSITIONS if key in hf)
    count = next((x for x in counts if is_integer(x) and x > 0), None)
    return replace(config, max_positions=count)


def described(hf: HFConfig, layout: Layout, layer: int, part: str) -> tuple[str, Config, dict[str, Any]]:
    """The name of the table and the config of a layer, as a family's reader has them, and the fields it states."""
    table_name, fields = layout.table_and_fields(hf, layer, part)  # type: ignore[misc]
    return table_name, contract.config(layout.variant_of(table_name), **fields), fields


def zero_divisor(hf: HFConfig, layout: Layout, layer: int, part: str) -> str | None:
    """The first field that is 0 and by which a family's reader divides."""
    for key, _, other_hf in hf.without_zeros():
        try:
            described(other_hf, layout, layer, part)
        except ZeroDivisionError:
            continue
        except (ValueError, TypeError):  # it came further
            pass
        return key
    return None


def assumed_fields(
    hf: HFConfig, layout: Layout, layer: int, part: str, table_name: str, config: Config
) -> dict[str, str]:
    """Fields of the Config that are neither in the file nor in its weights, but are the family's defaults: each with
    the absent field of the file that would give it.

    A field is assumed if another value of an absent one gives it another value. Where that is a flag or a word, and the
    field has our own default, a file that says nothing about it means the plain layer.
    """
    unseen = {*layout.tables[table_name].not_in_weights} - {*OVERRIDABLE_FIELDS}
    assumed: dict[str, str] = {}
    for key, value, other_hf in hf.alternatives():
        try:
            _, other, _ = described(other_hf, layout, layer, part)
        except (ValueError, TypeError, ZeroDivisionError):  # no value that this field can have
            continue
        if other.variant != config.variant:  # its weights have other names
            continue
        for name in unseen.intersection(differences(config, other)):
            plain = getattr(type(config), name, ...) == getattr(config, name)
            if not plain or not isinstance(value, bool | str):
                assumed.setdefault(name, key)
    return assumed


def refuse_assumed_fields(hf: HFConfig, config: Config, assumed: Mapping[str, str]) -> None:
    """Refuse a file of another family that leaves fields out which this family has a default for.

    Raises:
        ConfigMismatchError: naming the fields of the Config to pass.
    """
    if assumed:
        names = sorted(assumed)
        defaults = ", ".join(f"{name}={getattr(config, name)!r}" for name in names)
        keys = " and ".join(sorted(set(assumed.values())))
        expected = f"{keys}, as the model's own defaults may be others than those of this layout, {defaults}"
        fix = f"pass {', '.join(f'{name}=' for name in names)} with the values that the model has"
        raise ConfigMismatchError(hf.path, assumed[names[0]], expected, "none", fix)


def read_family_sidecar(path: str, layout: Layout, layer: int, part: str) -> tuple[str, Config, bool] | None:
    """As `table_name_and_config`, from the `config.json` beside the file, and whether its type is only the family's
    kin; None without one of this family.

    Raises:
        ConfigMismatchError: it cannot be read, or has a field that is unknown or cannot be represented.
    """
    sidecar = sidecar_path(path)
    if layout.table_and_fields is None or not os.path.exists(sidecar):
        return None
    hf = read_hf_config(sidecar)
    if hf.get("model_type") not in layout.model_types:
        return None
    table_name, config = table_name_and_config(hf, layout, layer, part)
    config = with_max_positions(hf, layout.tables[table_name], config)
    hf.refuse_unread(fix="name those that leave attention as it is to load_pretrained, as allow=")
    return table_name, config, hf.model_type() in layout.kin


def merge_caller_fields(path: str, layout_name: str, table: Table, config: Config, request: Request) -> Config:
    """A model's config with the caller's fields, which must agree with it but for OVERRIDABLE_FIELDS and
    TRAINING_FIELDS.

    Raises:
        ConfigMismatchError: the caller's layer, variant or fields differ from the model's.
        TypeError: a field that the variant does not have.
    """
    if request.target_variant not in (None, config.variant):
        fix = "leave variant= out, or move the file to another folder"
        expected = f"{config.variant!r} as in its {CONFIG}"
        raise ConfigMismatchError(path, "variant", expected, repr(request.target_variant), fix)
    refuse_other_fields(path, layout_name, table, config.variant, request.fields)
    overridable = {
        field: value for field, value in request.fields.items() if field in (*TRAINING_FIELDS, *OVERRIDABLE_FIELDS)
    }
    if request.into_config is not None:
        overridable |= {
            field: getattr(request.into_config, field) for field in OVERRIDABLE_FIELDS if field in config.fields()
        }
    config = contract.config(config.variant, **(config.as_dict() | overridable))
    for field, value in request.fields.items():
        if differences(config, contract.config(config.variant, **(config.as_dict() | {field: value}))):
            raise sidecar_mismatch(path, field, getattr(config, field), value)
    require_agreement(sidecar_path(path), config, Request(request.into_config))
    return config if request.into_config is None else request.into_config


def merge_fields_with_sidecar(
    path: str, layout_name: str, layout: Layout, table: Table, variant: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The caller's config fields and those of the `config.json` beside the file, which must agree.

    Raises:
        ConfigMismatchError: a field that the layout does not have, or one with two values.
    """
    sidecar = other_sidecar_fields(path, layout)
    refuse_other_fields(path, layout_name, table, variant, fields)
    for field, value in fields.items():
        if sidecar.get(field, value) != value:
            raise sidecar_mismatch(path, field, sidecar[field], value)
    return sidecar | dict(fields)


def infer_config(
    file: OpenFile,
    layout: Layout,
    table: Table,
    variant: str,
    layer_prefixes: LayerPrefixes,
    known: Mapping[str, Any],
) -> Config:
    """The config from the fields that are known and from the shapes of the tensors under a layer's prefixes.

    Raises:
        ConfigMismatchError, MissingKeysError: a base of rotary positions that is not known, or a key that is missing.
    """
    if layout.table_and_fields is not None and "rope_base" in table.not_in_weights and "rope_base" not in known:
        # The weights look the same for every base.
        fix = f"put the model's {CONFIG} beside the file, or pass rope_base= and its other fields of positions"
        expected = f"a {CONFIG} of this family beside it, or this field"
        raise ConfigMismatchError(file.path, "rope_base", expected, "none", fix)
    shapes = {
        key[len(layer_prefixes.layer_prefix) :]: file.entries[key].shape
        for key in file.entries
        if key.startswith(layer_prefixes.layer_prefix)
    }
    outside = {
        key: layer_prefixes.key_in_file(table, key) for key in (*table.first_layer_keys, *table.keys_beside_layers)
    }
    shapes |= {key: file.entries[name].shape for key, name in outside.items() if name in file.entries}
    fields = infer(table, shapes, known)
    missing = [layer_prefixes.key_in_file(table, key) for key in table.required_keys() if key not in shapes]
    if missing:
        present = [layer_prefixes.key_in_file(table, key) for key in shapes]
        require_same_keys(file.path, [*missing, *present], present)
    return canonical(contract.config(variant, **fields))


def refuse_other_fields(path: str, layout_name: str, table: Table, variant: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields of the variant that the layout does not have.

    Raises:
        ConfigMismatchError: naming the first.
    """
    for field, value in fields.items():
        if field in contract.get(variant).Config.fields() and field not in table.fields():
            fix = f"leave it out; {layout_name} takes {', '.join(table.fields())}"
            raise ConfigMismatchError(path, field, f"a field that {layout_name} has", f"{field}={value!r}", fix)


def other_sidecar_fields(path: str, layout: Layout) -> dict[str, Any]:
    """Our fields, by `other_sidecar_names`, in a `config.json` beside the file that is not of the layout's family."""
    sidecar = sidecar_path(path)
    if not layout.other_sidecar_names or not os.path.exists(sidecar):
        return {}
    hf = read_hf_config(sidecar)
    return {ours: hf.get(theirs) for theirs, ours in layout.other_sidecar_names.items() if theirs in hf}


def sidecar_path(path: str) -> str:
    """The path of a `config.json` beside a file."""
    return os.path.join(os.path.dirname(path), CONFIG)


def sidecar_mismatch(path: str, field: str, value: Any, got: Any) -> ConfigMismatchError:
    fix = f"leave {field}= out, or move the file away from that {CONFIG}"
    return ConfigMismatchError(path, field, f"{value!r} as in its {CONFIG}", repr(got), fix)
