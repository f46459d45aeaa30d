"""What a layout is: a table from our parameters to an origin's keys, read forwards and backwards."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attn_np.contract import Config, get
from attn_np.weights.layouts._rearrange import Side, joined, parse, rearrange, reverse, shape_of, solve
from attn_np.weights.layouts._stated import Stated

__all__ = ["Layout", "Step", "Table", "differences", "settled"]

Names = str | tuple[str, ...]
# Fields that do not change what a layer computes in evaluation mode: a file's value of them binds nobody.
TRAINING = ("dropout",)


@dataclass(frozen=True)
class Table:
    """How one of our variants stands in an origin.

    Attributes:
        rules: our parameter to (their key, "their axes -> our axes"). Several names on one side are stacked along a new
            first axis of that side; with bars, several of ours of any sizes stand one after the other in one of theirs:
            "(h k | g v) d -> d h k, d g v". `{n}` in names counts from 0 for as long as the variant has such a name.
        sizes: our Config field to the letter that its size has in the patterns.
        flags: our Config field to the parameters that exist only where it is True.
        counts: our Config field to the parameter whose `{n}` it counts.
        free: fields that the origin leaves to the caller, because its weights are the same for every value.
        fixed: fields that have one value in the origin.
        constants: letters whose size never varies.
        theirs: for an origin that is a variant of ours: fields of its Config that must have this value.
        zeros: parameters that the origin does not have, where ours are 0: a bias on two of three projections.
        shared: keys that stand in layer 0 alone and serve every layer.
        above: keys that stand beside the layers, before `layer.{layer}.`, and serve every layer.
        variant: the variant that it is of, where that is not the table's name: an origin may keep one in several ways.
    """

    rules: Mapping[Names, tuple[Names, str]]
    sizes: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    variant: str | None = None

    def fields(self) -> tuple[str, ...]:
        """The Config fields that a caller may give."""
        return (*self.sizes, *self.flags, *self.counts, *self.free, *TRAINING)


@dataclass(frozen=True)
class Layout:
    """The names and axes of one origin.

    Attributes:
        origin: whose they are.
        tables: for each of our variants that the origin has, how it stands there. Where there are several for one
            variant, a layer is written by the first that holds its config.
        prefixes: what may stand before the keys; `{layer}` is the number asked for. The first one is written. Where a
            layer has several blocks of attention, such prefixes for each by its name.
        ignored: patterns of keys after the prefix that belong to the origin's layer and not to ours.
        elsewhere: patterns of keys without the prefix that may stand in the same file.
        sidecar: field of a `config.json` beside the file to our Config field.
        metadata: what the origin wants in a file's metadata.
        variant: the variant of ours whose own names these are, if it is one.
        model_types: what the origin's `config.json` may call itself.
        config: from what such a `config.json` states, the number of a layer and the name of a block to the name of a
            table and the fields of our Config. It asks for fields by name and refuses what the layer cannot do.
    """

    origin: str
    tables: Mapping[str, Table]
    prefixes: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ("",)
    ignored: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    sidecar: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    variant: str | None = None
    model_types: tuple[str, ...] = ()
    config: Callable[[Stated, int, str], tuple[str, dict[str, Any]]] | None = None

    def variant_of(self, table: str) -> str:
        """The variant that a table is of."""
        return self.tables[table].variant or table

    def tables_of(self, variant: str) -> list[str]:
        """The names of the tables for a variant."""
        return [name for name in self.tables if self.variant_of(name) == variant]

    def holding(self, config: Config) -> str | None:
        """The first table that holds a config, else the first for its variant; None without one."""
        known = self.tables_of(config.variant)
        return next((name for name in known if not exportable(self.tables[name], config)), next(iter(known), None))

    def parts(self) -> tuple[str, ...]:
        """The names of a layer's blocks of attention: one that is empty where there is one."""
        return tuple(self.prefixes) if isinstance(self.prefixes, Mapping) else ("",)

    def starts(self, part: str) -> tuple[str, ...]:
        """What may stand before the keys of a block."""
        return self.prefixes[part] if isinstance(self.prefixes, Mapping) else self.prefixes


@dataclass(frozen=True)
class Step:
    """One rule, applied to one layer: our parameters, their keys, the pattern and the size of each of its letters."""

    params: tuple[str, ...]
    keys: tuple[str, ...]
    pattern: str
    sizes: Mapping[str, int]

    def key_shape(self) -> tuple[int, ...]:
        """The shape of each of their arrays."""
        whole = joined(self.pattern)
        if whole:
            return whole.shape(self.sizes)
        shape = shape_of(parse(self.pattern)[0], self.sizes)
        return shape[1:] if len(self.keys) > 1 else shape

    def key_axes(self) -> str:
        """The axes of each of their arrays."""
        if joined(self.pattern):
            return self.pattern.partition("->")[0].strip()
        left = parse(self.pattern)[0]
        axes = [axis[0] if len(axis) == 1 else f"({' '.join(axis)})" for axis in left]
        return " ".join(axes[1:] if len(self.keys) > 1 else axes)

    def ours(self, theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Their arrays as our parameters."""
        whole = joined(self.pattern)
        if whole:
            return dict(zip(self.params, whole.split(theirs[self.keys[0]], self.sizes), strict=True))
        return move(self.pattern, self.sizes, [theirs[key] for key in self.keys], self.params)

    def theirs(self, ours: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Our parameters as their arrays."""
        whole = joined(self.pattern)
        if whole:
            return {self.keys[0]: whole.join([ours[name] for name in self.params], self.sizes)}
        return move(reverse(self.pattern), self.sizes, [ours[name] for name in self.params], self.keys)


def move(
    pattern: str, sizes: Mapping[str, int], source: Sequence[np.ndarray], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    x = rearrange(np.stack(source) if len(source) > 1 else source[0], pattern, sizes)
    return dict(zip(names, x, strict=True)) if len(names) > 1 else dict.fromkeys(names, x)


def several(names: Names) -> tuple[str, ...]:
    """One name or several, as several."""
    return (names,) if isinstance(names, str) else names


def expanded(table: Table, known: Collection[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """The rules with `{n}` counted for as long as our parameters stand in `known`."""
    for params, (keys, pattern) in table.rules.items():
        for n in itertools.count():
            ours = tuple(name.format(n=n) for name in several(params))
            if not all(name in known for name in ours):
                break
            yield ours, tuple(key.format(n=n) for key in several(keys)), pattern
            if ours == several(params):
                break


def steps(table: Table, config: Config) -> list[Step]:
    """The table for one config: the rules of the parameters that it has.

    Raises:
        ValueError: parameters of one rule that differ in shape.
    """
    found, shapes = [], config.shapes()
    for params, keys, pattern in expanded(table, shapes):
        found.append(Step(params, keys, pattern, sizes_of(table, config.variant, params, keys, pattern, shapes)))
    covered = {name for step in found for name in step.params} | set(table.zeros)
    if not covered >= set(shapes):
        missing = ", ".join(sorted(set(shapes) - covered))
        raise ValueError(
            f"{config.variant}: expected a place for each parameter, got none for {missing}; use another layout"
        )
    return found


def sizes_of(
    table: Table,
    variant: str,
    params: tuple[str, ...],
    keys: tuple[str, ...],
    pattern: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, int]:
    """The size of each letter of a rule, from the shapes of our parameters."""
    whole = joined(pattern)
    if whole:
        known = dict(table.constants)
        for _ in params:  # each round may settle a letter that another part waits for
            for name, own in zip(params, whole.patterns, strict=True):
                known |= solve(parse(own)[1], shapes[name], known)
        return known
    left, right = parse(pattern)
    known = dict(table.constants) | stacking(right, params) | stacking(left, keys)
    target = shapes[params[0]]
    if any(shapes[name] != target for name in params):
        different = ", ".join(f"{name} {shapes[name]}" for name in params)
        raise ValueError(f"{variant}: expected equal shapes to stack, got {different}; use another layout")
    return known | solve(right, (len(params), *target) if len(params) > 1 else target, known)


def stacking(side: Side, names: tuple[str, ...]) -> dict[str, int]:
    """The size of the axis that stacks several names: the first one of their side."""
    return {letter: len(names) for letter in side[0]} if len(names) > 1 else {}


def infer(table: Table, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The Config fields that the shapes of an origin's arrays give away, with those that are given."""
    letters = dict(table.constants) | {
        table.sizes[name]: n for name, n in given.items() if name in table.sizes and type(n) is int
    }
    first = {name.format(n=0) for params in table.rules for name in several(params)}
    keys_of: dict[str, tuple[str, ...]] = {}
    for _ in table.rules:  # each round may settle a letter that another rule waits for
        for params, keys, pattern in expanded(table, first):
            keys_of |= dict.fromkeys(params, keys)
            whole = joined(pattern)
            if whole and keys[0] in shapes:
                letters = whole.solve(shapes[keys[0]], letters) | letters
            if whole:
                continue
            left, right = parse(pattern)
            stacked = len(keys) > 1
            for key in keys:
                if key in shapes:
                    known = letters | stacking(right, params)
                    letters = solve(left[1:] if stacked else left, shapes[key], known) | letters
    found = {name: letters[letter] for name, letter in table.sizes.items() if letter in letters}
    found |= {name: any(set(keys_of[p]) & set(shapes) for p in params) for name, params in table.flags.items()}
    for name, param in table.counts.items():
        key = next(several(keys)[0] for params, (keys, _) in table.rules.items() if param in several(params))
        found[name] = next(n for n in itertools.count() if key.format(n=n) not in shapes)
    return dict(table.fixed) | found | dict(given)


def settled(config: Config) -> Config:
    """The same config with None for every size that only repeats its default, so that equal layers compare equal."""
    for name in config.fields():
        value = getattr(config, name)
        if type(value) is int and measures(config, name, None) == measures(config) != measures(config, name, value + 1):
            config = replace(config, **{name: None})
    return config


def measures(config: Config, *change: Any) -> tuple[dict[str, int], dict[str, tuple[int, ...]]] | None:
    """Every size that a config fixes, with one field changed or as it is; None where the change cannot be.

    A field that is no size (an integer scale) leaves them as they are, whatever its value.
    """
    try:
        config = replace(config, **{change[0]: change[1]}) if change else config
        return config.sizes(), config.shapes()
    except (ValueError, TypeError):
        return None


def differences(a: Config, b: Config) -> list[str]:
    """The fields in which two configs of one variant differ, those for training alone left out."""
    x, y = settled(a).as_dict(), settled(b).as_dict()
    return [name for name in x if name not in TRAINING and x[name] != y[name]]


def exportable(table: Table, config: Config) -> list[str]:
    """The fields of a config that an origin cannot hold: those without a place in it that are not as it takes them."""
    lost = []
    for known in fields(config):
        if known.name in table.fields():
            continue
        usual = table.fixed.get(known.name, known.default)
        try:
            lost += differences(config, replace(config, **{known.name: usual}))
        except ValueError:  # without this field the config cannot be
            lost.append(known.name)
    return lost


def carried(table: Table, source: Config, target: str, *, forward: bool) -> dict[str, Any]:
    """The Config fields of one variant from those of another: the fields of the same name, and those that are fixed.

    Forward is from the layout's own variant to ours.
    """
    shared = set(source.fields()) & set(get(target).Config.fields())
    return {name: getattr(source, name) for name in shared} | dict(table.fixed if forward else table.theirs)
