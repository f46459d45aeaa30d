"""Layouts as data: a table from our parameters to an origin's keys, read in both directions."""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attn_np.contract import Config, get
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts._rearrange import Side, concatenation, parse, rearrange, reverse, shape_of, solve

Names = str | tuple[str, ...]
# Fields that do not change what a layer computes in evaluation mode: a caller's value goes before a file's.
TRAINING_FIELDS = ("dropout",)


@dataclass(frozen=True)
class Table:
    """One of our variants in an origin's names and axes.

    Attributes:
        rules: our parameter to (their key, "their axes -> our axes"). A tuple of names on one side stands for arrays
            that are stacked along a new first axis of that side. Bars stand for several arrays of ours, of any sizes,
            that are concatenated in one of theirs: "(h k | g v) d -> d h k, d g v". `{n}` in names counts from 0 for as
            long as the variant has such a name; in their key alone, it counts the entries of its first axis, each in an
            array of its own.
        letters: our Config field to the letter in the patterns whose size it is.
        flags: our Config field to the parameters that exist only if it is True.
        counts: our Config field to the parameter whose `{n}` it counts.
        not_in_weights: fields that are not inferred from the weights; `config.json` or the caller gives them.
        fixed: fields that have one value in the origin.
        constants: letters to sizes that never vary.
        orders: axis letter to a permutation: our entry i is the origin's entry order[i].
        origin_fixed: for an origin that is a variant of ours: fields of its Config that must have this value.
        absent: keys in rules that the origin does not have, whose entries are 0 here: Whisper's bias of keys, the
            biases of two of linen's gates.
        first_layer_keys: keys stored under layer 0 and used by every layer.
        keys_beside_layers: keys of the stack of layers, outside of `layer.{layer}.`, for every layer.
        variant: the variant, if the table has a name of its own: an origin may have several tables for one variant.
    """

    rules: Mapping[Names, tuple[Names, str]]
    letters: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    not_in_weights: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    origin_fixed: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    first_layer_keys: tuple[str, ...] = ()
    keys_beside_layers: tuple[str, ...] = ()
    variant: str | None = None

    def fields(self) -> tuple[str, ...]:
        """The Config fields that a caller may give."""
        return (*self.letters, *self.flags, *self.counts, *self.not_in_weights, *TRAINING_FIELDS)

    def required_rules(self) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
        """The rules of the parameters that every file has."""
        optional = {name for names in self.flags.values() for name in names}
        return [rule for rule in expand_rules(self) if not optional & set(rule[0])]

    def attention_prefix(self) -> str:
        """What all keys of attention begin with, up to a dot: keys of a layer without it are outside of attention."""
        outside = {*self.first_layer_keys, *self.keys_beside_layers, *self.absent}
        keys = [key for keys, _ in self.rules.values() for key in as_tuple(keys) if key not in outside]
        first, last = min(keys), max(keys)
        same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        return first[: first.rfind(".", 0, same) + 1]

    def required_keys(self) -> list[str]:
        """The keys of the parameters that every file has."""
        return [key for _, keys, _ in self.required_rules() for key in keys if key not in self.absent]


@dataclass(frozen=True)
class Layout:
    """The names and axes of one origin.

    Attributes:
        origin: the library and its class.
        tables: a table for each of our variants that the origin has. Of several for one variant, a layer is written by
            the first that supports its config.
        prefixes: prefixes of the keys; `{layer}` is the layer's number. The first one is written. Where there are
            parts (a layer's several blocks of attention, or a model's stages), such prefixes for each by its name.
        variant_from_tensors: keys and shapes decide which variant a file is: of the tables that they fit, the one with
            the most keys.
        separator: what may stand between the parts of a key instead of a dot.
        renamed: regular expressions for names that users choose in keys, to the tables' names for them.
        ignored: patterns of keys after the prefix that belong to the origin's layer and not to ours.
        unsupported: patterns of keys after the prefix to what they are: parts of attention that no table has.
        elsewhere: patterns of keys outside the layer, after the caller's prefix, that may be in the file.
        other_sidecar_names: for a `config.json` whose `model_type` is none of `model_types`: its fields, to our fields.
        metadata: metadata that the origin requires of a file.
        own_variant: where the origin is a variant of ours, with our own names, that variant; None: it is foreign.
        model_types: values of `model_type` in the origin's `config.json`.
        kin: those of `model_types` that `_kin.py` adds. Keys outside of their attention may have any name.
        table_and_fields: (`config.json`, number of a layer, name of a part) -> (name of a table, fields of our
            Config). It reads fields by name and refuses values that the layer cannot represent.
    """

    origin: str
    tables: Mapping[str, Table]
    prefixes: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ("",)
    variant_from_tensors: bool = False
    separator: str = "."
    renamed: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    other_sidecar_names: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    own_variant: str | None = None
    model_types: tuple[str, ...] = ()
    kin: tuple[str, ...] = ()
    table_and_fields: Callable[[HFConfig, int, str], tuple[str, dict[str, Any]]] | None = None

    def variant_of(self, table_name: str) -> str:
        """The variant of a table."""
        return self.tables[table_name].variant or table_name

    def tables_of(self, variant: str) -> list[str]:
        """The names of the tables for a variant."""
        return [name for name in self.tables if self.variant_of(name) == variant]

    def table_name_for(self, config: Config) -> str | None:
        """The first table that supports a config, else the first for its variant; None if there is none."""
        names = self.tables_of(config.variant)
        supported = (name for name in names if not unsupported_fields(self.tables[name], config))
        return next(supported, next(iter(names), None))

    def key_as_in_tables(self, key: str) -> str:
        """A key of a file as the tables have it: with dots, and with their names for what users name."""
        key = key.replace(self.separator, ".")
        for pattern, name in self.renamed.items():
            key = re.sub(pattern, name, key)
        return key

    def parts(self) -> tuple[str, ...]:
        """The names of the parts (a layer's blocks of attention, a model's stages); one empty name without parts."""
        return tuple(self.prefixes) if isinstance(self.prefixes, Mapping) else ("",)

    def prefixes_of(self, part: str) -> tuple[str, ...]:
        """The prefixes of a part's keys."""
        return self.prefixes[part] if isinstance(self.prefixes, Mapping) else self.prefixes


@dataclass(frozen=True)
class AppliedRule:
    """One rule, applied to one layer: our parameters, their keys, the pattern, and the size of each of its letters and
    the order of their entries.
    """

    params: tuple[str, ...]
    keys: tuple[str, ...]
    pattern: str
    sizes: Mapping[str, int]
    orders: Mapping[str, tuple[int, ...]]

    def key_shape(self) -> tuple[int, ...]:
        """The shape of each of their arrays."""
        concat = concatenation(self.pattern)
        if concat:
            return concat.shape(self.sizes)
        shape = shape_of(parse(self.pattern)[0], self.sizes)
        return shape[1:] if len(self.keys) > 1 else shape

    def key_axes(self) -> str:
        """The axes of each of their arrays."""
        if concatenation(self.pattern):
            return self.pattern.partition("->")[0].strip()
        left = parse(self.pattern)[0]
        axes = [" ".join(axis) if len(axis) == 1 else f"({' '.join(axis)})" if axis else "1" for axis in left]
        return " ".join(axes[1:] if len(self.keys) > 1 else axes)

    def to_params(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Their arrays as our parameters."""
        concat = concatenation(self.pattern)
        if concat:
            return dict(zip(self.params, concat.split(arrays[self.keys[0]], self.sizes), strict=True))
        moved = move(self.pattern, self.sizes, [arrays[key] for key in self.keys], self.params)
        return {name: self.reordered(x, back=False) for name, x in moved.items()}

    def to_layout(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Our parameters as their arrays."""
        concat = concatenation(self.pattern)
        if concat:
            return {self.keys[0]: concat.join([params[name] for name in self.params], self.sizes)}
        ours = [self.reordered(params[name], back=True) for name in self.params]
        return move(reverse(self.pattern), self.sizes, ours, self.keys)

    def reordered(self, x: np.ndarray, *, back: bool) -> np.ndarray:
        """One of our parameters, its entries moved from their order to ours; with `back`, from ours to theirs."""
        side = parse(self.pattern)[1][len(self.params) > 1 :]
        letters = [letter for axis in side for letter in axis]
        for letter in self.orders.keys() & letters:
            order = np.argsort(self.orders[letter]) if back else self.orders[letter]
            split = x.reshape([self.sizes[one] for one in letters])
            x = np.take(split, order, axis=letters.index(letter)).reshape(x.shape)
        return x


def move(
    pattern: str, sizes: Mapping[str, int], source: Sequence[np.ndarray], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Arrays by name: the source, stacked if it is several, rearranged, and unstacked if there are several names."""
    x = rearrange(np.stack(source) if len(source) > 1 else source[0], pattern, sizes)
    return dict(zip(names, x, strict=True)) if len(names) > 1 else dict.fromkeys(names, x)


def as_tuple(names: Names) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (names,) if isinstance(names, str) else names


def expand_rules(
    table: Table, params: Collection[str] | None = None
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """The rules for some parameters, as (our names, their keys, pattern): a rule with `{n}` once for every number.

    By default the parameters are those of every rule, with 0 for `{n}`.
    """
    if params is None:
        params = {name.format(n=0) for names in table.rules for name in as_tuple(names)}
    for rule_params, (rule_keys, pattern) in table.rules.items():
        for n in itertools.count():
            names = tuple(name.format(n=n) for name in as_tuple(rule_params))
            if not all(name in params for name in names):
                break
            yield names, tuple(key.format(n=n) for key in as_tuple(rule_keys)), pattern
            if names == as_tuple(rule_params):
                break


def applied_rules(table: Table, config: Config) -> list[AppliedRule]:
    """The rules for the parameters of a config.

    Raises:
        ValueError: parameters of one rule that differ in shape, or a parameter without a rule.
    """
    shapes = config.shapes()
    rules: list[AppliedRule] = []
    earlier_sizes: dict[str, int] = {}
    for params, keys, pattern in expand_rules(table, shapes):
        sizes = letter_sizes(table, config.variant, params, keys, pattern, shapes, earlier_sizes)
        earlier_sizes |= sizes
        keys = numbered(table, params, keys, pattern, sizes)
        rules.append(AppliedRule(params, keys, pattern, sizes, table.orders))
    missing = sorted(set(shapes) - {name for applied in rules for name in applied.params})
    if missing:
        got = f"none for {', '.join(missing)}"
        raise ValueError(f"{config.variant}: expected a rule for each parameter, got {got}; use another layout")
    return rules


def numbered(
    table: Table, params: tuple[str, ...], keys: tuple[str, ...], pattern: str, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """The keys of a rule: where theirs has a `{n}` that our name has not, one for each entry of its first axis."""
    key = table.rules.get(params[0], ("", ""))[0]
    if len(params) > 1 or not isinstance(key, str) or "{n}" not in key:
        return keys
    (letter, *_), *_ = parse(pattern)[0]
    return tuple(key.format(n=n) for n in range(sizes[letter]))


def rules_for_all_params(table: Table, config: Config) -> list[AppliedRule]:
    """The rules for the parameters of a config, among which are all that every file of this table has.

    Raises:
        ValueError: as `applied_rules`, or a config without a parameter that every file has.
    """
    rules = applied_rules(table, config)
    required = {name for names, _, _ in table.required_rules() for name in names}
    lacking = sorted(required - {name for applied in rules for name in applied.params})
    if lacking:
        words = "expected the parameters that every layer of this layout has"
        raise ValueError(f"{config.variant}: {words}, got no {', '.join(lacking)}; use another layout")
    return rules


def letter_sizes(
    table: Table,
    variant: str,
    params: tuple[str, ...],
    keys: tuple[str, ...],
    pattern: str,
    shapes: Mapping[str, tuple[int, ...]],
    earlier_sizes: Mapping[str, int],
) -> dict[str, int]:
    """The size of each letter of a rule, from our parameters' shapes; what they leave open (the groups) from earlier
    rules.
    """
    concat = concatenation(pattern)
    if concat:
        sides = [parse(part_pattern)[1] for part_pattern in concat.patterns]
        needed = {letter for side in sides for axis in side for letter in axis}
        for known in ({}, {letter: n for letter, n in earlier_sizes.items() if letter in needed}):
            sizes = dict(table.constants) | known
            for _ in params:  # each round may give a letter that another part waits for
                for name, side in zip(params, sides, strict=True):
                    sizes |= solve(side, shapes[name], sizes)
            if needed <= set(sizes):
                return sizes
        got = ", ".join(str(shapes[name]) for name in params)
        raise ValueError(f"{variant}: expected sizes that {pattern!r} can divide, got {got}; use another layout")
    left, right = parse(pattern)
    sizes = dict(table.constants) | stack_size(right, params) | stack_size(left, keys)
    shape = shapes[params[0]]
    if any(shapes[name] != shape for name in params):
        different = ", ".join(f"{name} {shapes[name]}" for name in params)
        raise ValueError(f"{variant}: expected equal shapes to stack, got {different}; use another layout")
    needed, stacked = set(sum(right, ())), (len(params), *shape) if len(params) > 1 else shape
    sizes |= solve(right, stacked, sizes)
    if not needed <= set(sizes):
        sizes = {letter: n for letter, n in earlier_sizes.items() if letter in needed} | sizes
        sizes |= solve(right, stacked, sizes)
    if not needed <= set(sizes):
        raise ValueError(f"{variant}: expected sizes that {pattern!r} can divide, got {shape}; use another layout")
    return sizes


def stack_size(side: Side, names: tuple[str, ...]) -> dict[str, int]:
    """The size of the axis that stacks several names: the first one of their side."""
    return {letter: len(names) for letter in side[0]} if len(names) > 1 else {}


def infer(table: Table, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Any]) -> dict[str, Any]:
    """Config fields: those known, those that follow from the shapes of an origin's arrays, and those it fixes."""
    size_of = dict(table.constants) | {
        table.letters[name]: n for name, n in known.items() if name in table.letters and type(n) is int
    }
    keys_of: dict[str, tuple[str, ...]] = {}
    for _ in table.rules:  # each round may give a letter that another rule waits for
        for params, keys, pattern in expand_rules(table):
            keys_of |= dict.fromkeys(params, keys)
            concat = concatenation(pattern)
            if concat and keys[0] in shapes:
                size_of = concat.solve(shapes[keys[0]], size_of) | size_of
            if concat:
                continue
            left, right = parse(pattern)
            side = left[1:] if len(keys) > 1 else left
            for key in keys:
                if key in shapes:
                    size_of = solve(side, shapes[key], size_of | stack_size(right, params)) | size_of
    sizes = {name: size_of[letter] for name, letter in table.letters.items() if letter in size_of}
    flags = {name: any(set(keys_of[p]) & set(shapes) for p in params) for name, params in table.flags.items()}
    counts = {}
    for name, param in table.counts.items():
        key = next(as_tuple(keys)[0] for params, (keys, _) in table.rules.items() if param in as_tuple(params))
        counts[name] = next(n for n in itertools.count() if key.format(n=n) not in shapes)
    return dict(table.fixed) | sizes | flags | counts | dict(known)


def letter_sizes_agree(table: Table, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether arrays have as many axes as their patterns, and each letter, alone or with others, has one size."""
    sizes: dict[tuple[str, ...], int] = {}
    for _, keys, pattern in expand_rules(table):
        concat = concatenation(pattern)
        axes = parse(concat.patterns[0] if concat else pattern)[0][len(keys) > 1 :]
        whole = [n for n in range(len(axes)) if concat is None or n != concat.axis]
        for shape in (shapes[key] for key in keys if key in shapes):
            if len(shape) != len(axes) or any(sizes.setdefault((*axes[n],), shape[n]) != shape[n] for n in whole):
                return False
    return True


def canonical(config: Config) -> Config:
    """The same config with None for every size that only repeats its default, so that equal layers compare equal."""
    sizes = sizes_with(config)
    for name in config.fields():
        value = getattr(config, name)
        if type(value) is int and sizes_with(config, name, None) == sizes != sizes_with(config, name, value + 1):
            config = replace(config, **{name: None})
    return config


def sizes_with(
    config: Config, *change: Any
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], tuple[int, ...]] | None:
    """Every size that a config fixes, with one field changed or as it is; None if the change is impossible.

    A field that is not a size (an integer scale) leaves them as they are, whatever its value.
    """
    try:
        config = replace(config, **{change[0]: change[1]}) if change else config
        return config.sizes(), config.shapes(), config.unshown_sizes()
    except (ValueError, TypeError):
        return None


# A config with 1.0 may get the cached one with 1: fine to compare, not to return.
cached_canonical = lru_cache(maxsize=64)(canonical)


def differences(a: Config, b: Config) -> list[str]:
    """The fields in which two configs of one variant differ, without those for training alone."""
    if a == b:  # nearly always, and `canonical` makes many configs
        return []
    x, y = cached_canonical(a).as_dict(), cached_canonical(b).as_dict()
    return [name for name in x if name not in TRAINING_FIELDS and x[name] != y[name]]


def unsupported_fields(table: Table, config: Config) -> list[str]:
    """The fields of a config that an origin cannot represent: not in its table, and not at the value it implies."""
    names = []
    for config_field in fields(config):
        if config_field.name in table.fields():
            continue
        implied = table.fixed.get(config_field.name, config_field.default)
        try:
            names += differences(config, replace(config, **{config_field.name: implied}))
        except ValueError:  # the config is impossible without this field
            names.append(config_field.name)
    return names


def converted_fields(table: Table, source: Config, target: str, *, from_layout: bool) -> dict[str, Any]:
    """The Config fields of a variant from those of another: the fields of the same name, and those that are fixed.

    With `from_layout`, from the layout's origin to the variant of the table; without, back.
    """
    shared = set(source.fields()) & set(get(target).Config.fields())
    return {name: getattr(source, name) for name in shared} | dict(table.fixed if from_layout else table.origin_fixed)
