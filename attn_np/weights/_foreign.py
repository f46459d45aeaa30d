"""Files in the layouts of others, and one variant of ours as another: what the tables say, checked and carried out."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config, nearest
from attn_np.weights import layouts
from attn_np.weights._check import Wanted, WeightFile, accepted, agree, check, one_dtype
from attn_np.weights._errors import (
    ConfigMismatchError,
    MissingKeysError,
    UnexpectedKeysError,
    compare_keys,
    compare_shape,
    listed,
)
from attn_np.weights._header import write_tensors
from attn_np.weights._shards import Tensors
from attn_np.weights.layouts import _base
from attn_np.weights.layouts._base import Layout, Step, Table

SIDECAR = "config.json"
MAX_SIDECAR = 2**20


def read_foreign(file: Tensors, name: str, layer: int | None, prefix: str, wanted: Wanted) -> WeightFile:
    layout = layouts.get(name)
    variant = _which(name, layout, wanted.variant)
    table = layout.tables[variant]
    inside = [key[len(prefix) :] for key in file.entries if key.startswith(prefix)]
    start = prefix + _prefix(file.path, layout, table, layer, inside)
    stated = _stated(file.path, name, layout, table, variant, wanted.fields)
    shapes = {key[len(start) :]: file.entries[key].shape for key in file.entries if key.startswith(start)}
    if wanted.config is None:
        config = _inferred(file.path, variant, table, start, shapes, stated)
    else:
        config = wanted.config
        agree(file.path, contract.config(variant, **(config.as_dict() | stated)), Wanted(config))
    plan = _plan(file.path, name, table, config)
    _accept_keys(file, layout, plan, prefix, start)
    for step in plan:
        for key in step.keys:
            compare_shape(file.path, start + key, step.key_shape(), shapes[key], step.key_axes())
    kinds = {start + key: file.entries[start + key].dtype for step in plan for key in step.keys}
    kind = one_dtype(file.path, kinds, wanted.dtype, wanted.cast)
    values = {}
    for step in plan:
        arrays = {key: file.read(start + key) for key in step.keys}
        values |= step.ours({k: accepted(file.path, start + k, x, kind, wanted.finite) for k, x in arrays.items()})
    return WeightFile(file.path, config, kind, {key: values[key] for key in config.shapes()})


def _which(name: str, layout: Layout, variant: str | None) -> str:
    known = tuple(layout.tables)
    if variant is None and len(known) == 1:
        return known[0]
    if variant not in known:
        todo = f"pass variant=, one of {', '.join(known)}"
        raise ValueError(f"expected a variant that layout {name} has, got {variant!r}; {todo}")
    return variant


def _prefix(file: str, layout: Layout, table: Table, layer: int | None, keys: Sequence[str]) -> str:
    """The layout's prefix that this file uses, with the number of the layer asked for, or of the only one."""
    counted = "{layer}" in layout.prefixes[0]
    if layer is not None and (not counted or isinstance(layer, bool) or not isinstance(layer, int) or layer < 0):
        rule = "layer= to be an integer from 0" if counted else "no layer=, as this layout has one layer"
        raise ValueError(f"expected {rule}, got {layer!r}; {'correct it' if counted else 'leave it out'}")
    heads = tuple(key for names, _ in table.rules.values() for key in _base.several(names))
    found: dict[str, int] = {}
    for form in layout.prefixes:
        pattern = re.compile(re.escape(form).replace(re.escape("{layer}"), "([0-9]{1,6})"))
        for key in keys:
            match = pattern.match(key)
            if match and any(key[match.end() :] == head.format(n=0) for head in heads):
                found[match[0]] = int(match[1]) if counted else 0
    wanted = [start for start, number in found.items() if layer in (None, number)]
    if len(wanted) == 1:
        return wanted[0]
    if not wanted:
        there = f"layers {', '.join(map(str, sorted(set(found.values()))))}" if found else f"keys {listed(keys)}"
        expected = layout.prefixes[0].format(layer="*" if layer is None else layer) + heads[0].format(n=0)
        todo = "pass the number of a layer that is there" if found else "check layout= and prefix="
        raise MissingKeysError(file, expected, "a key of this name", there, todo)
    if len({found[start] for start in wanted}) == 1:
        todo = "take the other keys out of the file"
        raise UnexpectedKeysError(file, wanted[1], "one layer of each number", f"all of {listed(wanted)}", todo)
    todo = f"pass layer=, one of {', '.join(map(str, sorted(set(found.values()))))}"
    raise ValueError(f"{file}: expected one layer, got {len(wanted)} ({listed(wanted)}); {todo}")


def _stated(
    file: str, name: str, layout: Layout, table: Table, variant: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The config fields that the caller gives and those that the file's neighbour states, which must agree."""
    beside = _sidecar(file, layout)
    for field, value in fields.items():
        if field in contract.get(variant).Config.fields() and field not in table.fields():
            todo = f"leave it out; {name} takes {', '.join(table.fields())}"
            raise ConfigMismatchError(file, field, f"a field that {name} has", f"{field}={value!r}", todo)
        if beside.get(field, value) != value:
            todo = f"leave {field}= out, or put the file apart from that {SIDECAR}"
            raise ConfigMismatchError(file, field, f"{beside[field]!r} as in its {SIDECAR}", repr(value), todo)
    return beside | dict(fields)


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
    start: str,
    shapes: Mapping[str, tuple[int, ...]],
    stated: Mapping[str, Any],
) -> Config:
    """The config from what is stated and what the shapes give away."""
    fields = _base.infer(table, shapes, stated)
    optional = {name for names in table.flags.values() for name in names}
    needed = [keys for params, keys, _ in _base.expanded(table, _first(table)) if not optional & set(params)]
    missing = [start + key for keys in needed for key in keys if key not in shapes]
    if missing:
        compare_keys(file, [*missing, *(start + key for key in shapes)], [start + key for key in shapes])
    return _base.settled(contract.config(variant, **fields))


def _first(table: Table) -> set[str]:
    return {name.format(n=0) for names in table.rules for name in _base.several(names)}


def _plan(file: str, name: str, table: Table, config: Config) -> list[Step]:
    try:
        return _base.steps(table, config)
    except ValueError as error:
        todo = f"choose another layout than {name}"
        raise ConfigMismatchError(file, "config", f"a config that {name} can hold", str(error), todo) from None


def _accept_keys(file: Tensors, layout: Layout, plan: Sequence[Step], prefix: str, start: str) -> None:
    """Every key is one of the layer's, or one that the layout says it ignores."""
    needed = [start + key for step in plan for key in step.keys]
    found = []
    for key in file.entries:
        own = key.startswith(start)
        patterns, rest = (layout.ignored, key[len(start) :]) if own else (layout.elsewhere, key[len(prefix) :])
        if key.startswith(prefix) and not any(fnmatchcase(rest, pattern) for pattern in patterns):
            found.append(key)
    compare_keys(file.path, needed, found)


def write_foreign(
    file: str, config: Config, values: Mapping[str, np.ndarray], name: str, layer: int | None, prefix: str
) -> None:
    found = layouts.get(name)
    if found.variant is not None:
        raise ValueError(
            f"expected a foreign layout to write, got {name!r}; use attn_np.weights.convert and write its result"
        )
    table = found.tables[_which(name, found, config.variant)]
    lost = _base.exportable(table, config)
    if lost:
        got = ", ".join(f"{field}={getattr(config, field)!r}" for field in lost)
        raise ConfigMismatchError(file, "config", f"a config that {name} can hold", got, "choose another layout")
    if layer is not None and "{layer}" not in found.prefixes[0]:
        raise ValueError(f"expected no layer=, as this layout has one layer, got {layer!r}; leave it out")
    start = prefix + found.prefixes[0].format(layer=layer or 0)
    arrays: dict[str, np.ndarray] = {}
    for step in _plan(file, name, table, config):
        arrays |= {start + key: x for key, x in step.theirs(values).items()}
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
