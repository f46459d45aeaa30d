"""Files in the layouts of others, and one variant of ours as another: what the tables say, checked and carried out."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config, nearest
from attn_np.weights import layouts
from attn_np.weights._cast import DTYPES
from attn_np.weights._check import Wanted, WeightFile, accepted, agree, check, one_dtype
from attn_np.weights._errors import (
    ConfigMismatchError,
    MissingKeysError,
    UnexpectedKeysError,
    WeightFileError,
    compare_keys,
    compare_shape,
    listed,
)
from attn_np.weights._header import write_tensors
from attn_np.weights._shards import Tensors
from attn_np.weights.layouts import _base
from attn_np.weights.layouts._base import Layout, Step, Table
from attn_np.weights.layouts._stated import CONFIG, Stated, stated_in

SIDECAR = CONFIG
MAX_SIDECAR = 2**20
# Fields that a caller may say of a layer whose model states the rest.
SAID = ("max_positions",)


@dataclass(frozen=True)
class Place:
    """Where keys stand: what is before a layer's, before those that layer 0 keeps for all, and before all layers."""

    start: str
    first: str
    above: str
    layer: int

    def key(self, table: Table, key: str) -> str:
        """A key of the table as it stands in the file."""
        return (self.first if key in table.shared else self.above if key in table.above else self.start) + key


def place_of(prefix: str, form: str, start: str, layer: int) -> Place:
    """The place of a layer: `encoder.layer.3.`, of the first, and what all of them are in, `encoder.`."""
    above = form.partition("{layer}")[0].rstrip(".").rpartition(".")
    return Place(prefix + start, prefix + form.format(layer=0), prefix + above[0] + above[1], layer)


def read_foreign(
    file: Tensors, name: str, layer: int | None, part: str | None, prefix: str, wanted: Wanted
) -> WeightFile:
    layout = layouts.get(name)
    chosen = _which(name, layout, wanted.variant, file.entries)
    table, variant = layout.tables[chosen], layout.variant_of(chosen)
    place = placed(file, layout, table, layer, part, prefix)
    whole = of_family(file.path, layout, place.layer, block(layout, part))
    if whole is not None:
        chosen, config = whole
        table = layout.tables[chosen]
        config = _told(file.path, name, table, config, wanted)
        place = placed(file, layout, table, layer, part, prefix)
        return read_table(file, name, table, config, place, prefix, wanted)[0]
    stated = _stated(file.path, name, layout, table, variant, wanted.fields)
    if wanted.config is None:
        _turning(file.path, layout, table, stated)
        config = _inferred(file.path, variant, table, place, _shapes(file, table, place), stated)
    else:
        config = wanted.config
        agree(file.path, contract.config(variant, **(config.as_dict() | stated)), Wanted(config))
    return read_table(file, name, table, config, place, prefix, wanted)[0]


def read_table(
    file: Tensors, name: str, table: Table, config: Config, place: Place, prefix: str, wanted: Wanted
) -> tuple[WeightFile, list[str], list[str]]:
    """The parameters of a config from where they stand, the keys they were read from, and the layer's keys left out."""
    layout = layouts.get(name)
    plan = _plan(file.path, name, table, config)
    keys = {key: place.key(table, key) for step in plan for key in step.keys}
    left_out = _accept_keys(file, layout, list(keys.values()), prefix, place.start)
    for step in plan:
        for key in step.keys:
            compare_shape(file.path, keys[key], step.key_shape(), file.entries[keys[key]].shape, step.key_axes())
    kind = one_dtype(file.path, {key: file.entries[key].dtype for key in keys.values()}, wanted.dtype, wanted.cast)
    values = {}
    # The largest first: what is read of theirs is gone when the next is read, so the peak is that of the last ones.
    for step in sorted(plan, key=lambda step: -prod(step.key_shape()) * len(step.keys)):
        values |= step.ours(
            {k: accepted(file.path, keys[k], file.read(keys[k]), kind, wanted.finite) for k in step.keys}
        )
    shapes = config.shapes()
    values |= {key: np.zeros(shapes[key], DTYPES[kind]) for key in table.zeros if key in shapes and kind is not None}
    found = WeightFile(file.path, config, kind, {key: values.pop(key) for key in shapes})
    return found, list(keys.values()), left_out


def _shapes(file: Tensors, table: Table, place: Place) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors under a layer's prefix, and of those that layer 0 keeps for all."""
    start = place.start
    found = {key[len(start) :]: file.entries[key].shape for key in file.entries if key.startswith(start)}
    apart = {key: place.key(table, key) for key in (*table.shared, *table.above)}
    apart = {key: name for key, name in apart.items() if name in file.entries}
    return found | {key: file.entries[name].shape for key, name in apart.items()}


def _which(name: str, layout: Layout, variant: str | None, keys: Collection[str]) -> str:
    """The table for the variant that a caller means, or the only one: of several the first whose keys are there."""
    variants = {layout.variant_of(table) for table in layout.tables}
    known = layout.tables_of(next(iter(variants)) if variant is None and len(variants) == 1 else str(variant))
    if len(known) > 1:
        return next((table for table in known if _within(layout.tables[table], keys)), known[0])
    if known:
        return known[0]
    todo = f"pass variant=, one of {', '.join(dict.fromkeys(map(layout.variant_of, layout.tables)))}"
    raise ValueError(f"expected a variant that layout {name} has, got {variant!r}; {todo}")


def _within(table: Table, keys: Collection[str]) -> bool:
    """Whether a file has keys of every name that the table cannot do without."""
    return all(any(key.endswith(name) for key in keys) for names in _needed(table) for name in names)


def _needed(table: Table) -> list[tuple[str, ...]]:
    """The keys of the parameters that every config has."""
    optional = {name for names in table.flags.values() for name in names}
    return [keys for params, keys, _ in _base.expanded(table, _first(table)) if not optional & set(params)]


def described(stated: Stated, layout: Layout, layer: int, part: str) -> tuple[str, Config]:
    """The table and the config of a layer, as the family's fields describe them.

    Raises:
        ConfigMismatchError: a field that cannot be represented.
    """
    if part in ("", "encoder"):
        stated.layers("num_hidden_layers", layer)
    if layout.config is None:
        raise ValueError(f"expected a layout with a {CONFIG}, got {layout.origin}; use load")
    try:
        table, fields = layout.config(stated, layer, part)
        return table, contract.config(layout.variant_of(table), **fields)
    except WeightFileError:
        raise
    except (ValueError, TypeError, ZeroDivisionError) as error:
        todo = "build the layer by hand, or use the library the model was made for"
        raise ConfigMismatchError(stated.file, None, "a layer that can be", str(error)[:400], todo) from None


def block(layout: Layout, part: str | None) -> str:
    """The name of the block of attention asked for, or of the only one.

    Raises:
        ValueError: there is none of this name, or there are several and none is asked for.
    """
    known = layout.parts()
    if part is None and len(known) == 1:
        return known[0]
    if part not in known or (part == "" and known == ("",)):
        several = len(known) > 1
        rule = (
            f"part= to be one of {', '.join(known)}" if several else "no part=, as a layer has one block of attention"
        )
        raise ValueError(f"expected {rule}, got {part!r}; {'name the block' if several else 'leave it out'}")
    return part


def placed(file: Tensors, layout: Layout, table: Table, layer: int | None, part: str | None, prefix: str) -> Place:
    """Where in the file the keys of a layer's block stand."""
    inside = [key[len(prefix) :] for key in file.entries if key.startswith(prefix)]
    return place_of(prefix, *_prefix(file.path, layout.starts(block(layout, part)), table, layer, inside))


def _prefix(
    file: str, forms: Sequence[str], table: Table, layer: int | None, keys: Sequence[str]
) -> tuple[str, str, int]:
    """The prefix that this file uses, as it is written and with the number asked for or the only one; the number."""
    counted = "{layer}" in forms[0]
    if layer is not None and (not counted or isinstance(layer, bool) or not isinstance(layer, int) or layer < 0):
        rule = "layer= to be an integer from 0" if counted else "no layer=, as this layout has one layer"
        raise ValueError(f"expected {rule}, got {layer!r}; {'correct it' if counted else 'leave it out'}")
    apart = {*table.shared, *table.above}
    heads = tuple(key for names, _ in table.rules.values() for key in _base.several(names) if key not in apart)
    found: dict[str, tuple[int, str]] = {}
    for form in forms:
        pattern = re.compile(re.escape(form).replace(re.escape("{layer}"), "([0-9]{1,6})"))
        for key in keys:
            match = pattern.match(key)
            if match and any(key[match.end() :] == head.format(n=0) for head in heads):
                found[match[0]] = (int(match[1]) if counted else 0, form)
    numbers = sorted({number for number, _ in found.values()})
    wanted = [start for start, (number, _) in found.items() if layer in (None, number)]
    if len(wanted) == 1:
        number, form = found[wanted[0]]
        return form, wanted[0], number
    if not wanted:
        there = f"layers {', '.join(map(str, numbers))}" if found else f"keys {listed(keys)}"
        expected = forms[0].format(layer="*" if layer is None else layer) + heads[0].format(n=0)
        todo = "pass the number of a layer that is there" if found else "check layout= and prefix="
        raise MissingKeysError(file, expected, "a key of this name", there, todo)
    if len({found[start][0] for start in wanted}) == 1:
        todo = "take the other keys out of the file"
        raise UnexpectedKeysError(file, wanted[1], "one layer of each number", f"all of {listed(wanted)}", todo)
    todo = f"pass layer=, one of {', '.join(map(str, numbers))}"
    raise ValueError(f"{file}: expected one layer, got {len(wanted)} ({listed(wanted)}); {todo}")


def _stated(
    file: str, name: str, layout: Layout, table: Table, variant: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The config fields that the caller gives and those that the file's neighbour states, which must agree."""
    beside = _sidecar(file, layout)
    _taken(file, name, table, variant, fields)
    for field, value in fields.items():
        if beside.get(field, value) != value:
            todo = f"leave {field}= out, or put the file apart from that {SIDECAR}"
            raise ConfigMismatchError(file, field, f"{beside[field]!r} as in its {SIDECAR}", repr(value), todo)
    return beside | dict(fields)


def _taken(file: str, name: str, table: Table, variant: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields of the variant that the layout has no place for."""
    for field, value in fields.items():
        if field in contract.get(variant).Config.fields() and field not in table.fields():
            todo = f"leave it out; {name} takes {', '.join(table.fields())}"
            raise ConfigMismatchError(file, field, f"a field that {name} has", f"{field}={value!r}", todo)


def of_family(file: str, layout: Layout, layer: int, part: str) -> tuple[str, Config] | None:
    """The table and the config of a layer by the `config.json` beside the file; None without one of this family.

    Raises:
        ConfigMismatchError: it cannot be read, or states what the layer cannot do or nobody knows.
    """
    path = os.path.join(os.path.dirname(file), SIDECAR)
    if layout.config is None or not os.path.exists(path):
        return None
    stated = stated_in(path)
    if stated.get("model_type") not in layout.model_types:
        return None
    found = described(stated, layout, layer, part)
    stated.finish(todo="name those that leave attention as it is to load_pretrained, as allow=")
    return found


def _told(file: str, name: str, table: Table, config: Config, wanted: Wanted) -> Config:
    """The config that a model states, with what the caller says of it besides, which must agree.

    Raises:
        ConfigMismatchError: the caller's layer, variant or fields are not what the model states.
        TypeError: a field that the variant does not have.
    """
    path = os.path.join(os.path.dirname(file), SIDECAR)
    if wanted.variant not in (None, config.variant):
        todo = "leave variant= out, or put the file apart from it"
        raise ConfigMismatchError(
            file, "variant", f"{config.variant!r} as in its {SIDECAR}", repr(wanted.variant), todo
        )
    _taken(file, name, table, config.variant, wanted.fields)
    free = {field: value for field, value in wanted.fields.items() if field in (*_base.TRAINING, *SAID)}
    if wanted.config is not None:
        free |= {field: getattr(wanted.config, field) for field in SAID if field in config.fields()}
    config = contract.config(config.variant, **(config.as_dict() | free))
    for field, value in wanted.fields.items():
        if _base.differences(config, contract.config(config.variant, **(config.as_dict() | {field: value}))):
            todo = f"leave {field}= out, or put the file apart from that {SIDECAR}"
            raise ConfigMismatchError(file, field, f"{getattr(config, field)!r} as in its {SIDECAR}", repr(value), todo)
    agree(path, config, Wanted(wanted.config))
    return config if wanted.config is None else wanted.config


def _turning(file: str, layout: Layout, table: Table, stated: Mapping[str, Any]) -> None:
    """Refuse a model's layer with rotary positions whose base nobody says: weights look the same for every one.

    Raises:
        ConfigMismatchError: naming what to give.
    """
    if layout.config is not None and "rope_base" in table.free and "rope_base" not in stated:
        todo = f"put the model's {SIDECAR} beside the file, or pass rope_base= and what else it states of positions"
        raise ConfigMismatchError(
            file, "rope_base", f"a {SIDECAR} of this family beside it, or this field", "none", todo
        )


def _sidecar(file: str, layout: Layout) -> dict[str, Any]:
    """The config fields that a `config.json` in the file's folder states, for layouts that come with one."""
    path = os.path.join(os.path.dirname(file), SIDECAR)
    if not layout.sidecar or not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as stream:
            stated = json.loads(stream.read(MAX_SIDECAR))
        if not isinstance(stated, dict):
            raise ValueError(type(stated).__name__)
    except (ValueError, RecursionError) as error:
        raise ConfigMismatchError(path, None, "a JSON object", str(error)[:200], "correct or remove it") from None
    return {ours: stated[theirs] for theirs, ours in layout.sidecar.items() if theirs in stated}


def _inferred(
    file: str,
    variant: str,
    table: Table,
    place: Place,
    shapes: Mapping[str, tuple[int, ...]],
    stated: Mapping[str, Any],
) -> Config:
    """The config from what is stated and what the shapes give away."""
    fields = _base.infer(table, shapes, stated)
    missing = [place.key(table, key) for keys in _needed(table) for key in keys if key not in shapes]
    if missing:
        there = [place.key(table, key) for key in shapes]
        compare_keys(file, [*missing, *there], there)
    return _base.settled(contract.config(variant, **fields))


def _first(table: Table) -> set[str]:
    return {name.format(n=0) for names in table.rules for name in _base.several(names)}


def _plan(file: str, name: str, table: Table, config: Config) -> list[Step]:
    try:
        return _base.steps(table, config)
    except ValueError as error:
        todo = f"choose another layout than {name}"
        raise ConfigMismatchError(file, "config", f"a config that {name} can hold", str(error), todo) from None


def _accept_keys(file: Tensors, layout: Layout, needed: Sequence[str], prefix: str, start: str) -> list[str]:
    """Every key is one of the layer's, or one that the layout says it ignores: those under the layer's prefix."""
    found, left_out = [], []
    for key in file.entries:
        own = key.startswith(start)
        patterns, rest = (layout.ignored, key[len(start) :]) if own else (layout.elsewhere, key[len(prefix) :])
        if key not in needed and any(fnmatchcase(rest, pattern) for pattern in patterns):
            left_out += [key] if own else []
        elif key.startswith(prefix):
            found.append(key)
    compare_keys(file.path, needed, found)
    return left_out


def write_foreign(
    file: str,
    config: Config,
    values: Mapping[str, np.ndarray],
    name: str,
    layer: int | None,
    part: str | None,
    prefix: str,
) -> None:
    found = layouts.get(name)
    if found.variant is not None:
        raise ValueError(
            f"expected a foreign layout to write, got {name!r}; use attn_np.weights.convert and write its result"
        )
    table = found.tables[found.holding(config) or _which(name, found, config.variant, ())]
    lost = _base.exportable(table, config)
    if lost:
        got = ", ".join(f"{field}={getattr(config, field)!r}" for field in lost)
        raise ConfigMismatchError(file, "config", f"a config that {name} can hold", got, "choose another layout")
    form = found.starts(block(found, part))[0]
    if layer is not None and "{layer}" not in form:
        raise ValueError(f"expected no layer=, as this layout has one layer, got {layer!r}; leave it out")
    place = place_of(prefix, form, form.format(layer=layer or 0), layer or 0)
    plan = _plan(file, name, table, config)
    for key in table.zeros:
        if key in values and any(np.ascontiguousarray(values[key]).view(np.uint8).flat):
            todo = "set it to 0 where the layer does as well without, or choose another layout"
            raise ConfigMismatchError(file, key, f"zeros, as {name} has no place for it", "other numbers", todo)
    arrays: dict[str, np.ndarray] = {}
    for step in plan:
        arrays |= {place.key(table, key): x for key, x in step.theirs(values).items()}
    write_tensors(file, arrays, found.metadata)


def convert(config: Config, values: Mapping[str, np.ndarray], to: str) -> tuple[Config, dict[str, np.ndarray]]:
    """The same layer as another variant: its config and its parameters, bit by bit.

    Raises:
        ConfigMismatchError: a config that the other variant cannot express.
        ValueError: there is no table between the two.
    """
    check(config, values, finite=False)
    return convert_from("weights", config, values, to)


def convert_from(
    file: str, config: Config, values: Mapping[str, np.ndarray], to: str
) -> tuple[Config, dict[str, np.ndarray]]:
    contract.get(to)
    pairs = {
        (found.variant, ours): found
        for found in map(layouts.get, layouts.names())
        if found.variant
        for ours in found.tables
    }
    pairs |= {(ours, theirs): found for (theirs, ours), found in pairs.items() if theirs}
    if (config.variant, to) not in pairs:
        known = tuple(b for a, b in pairs if a == config.variant)
        todo = nearest(to, known) if known else "nothing is known to equal it"
        raise ValueError(f"{config.variant}: expected a variant that it can become, got {to!r}; {todo}")
    layout = pairs[config.variant, to]
    forward = layout.variant == config.variant
    table = layout.tables[to if forward else config.variant]
    try:
        target = contract.config(to, **_base.carried(table, config, to, forward=forward))
        back = contract.config(config.variant, **_base.carried(table, target, config.variant, forward=not forward))
        lost = _base.differences(config, back)
        plan = _base.steps(table, target if forward else config) if not lost else []
        moved: dict[str, np.ndarray] = {}
        for step in plan:
            moved |= step.ours(values) if forward else step.theirs(values)
    except ValueError as error:
        raise ConfigMismatchError(
            file, "config", f"a config that {to} can express", str(error), "choose another variant"
        ) from None
    if lost:
        got = ", ".join(f"{name}={getattr(config, name)!r}" for name in lost)
        raise ConfigMismatchError(file, "config", f"a config that {to} can express", got, "choose another variant")
    return target, {name: moved[name] for name in target.shapes()}
