"""Where a layer's keys are in a foreign file: the prefix, the layer's number, and the keys that are ignored."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from attn_np.contract._base import is_integer
from attn_np.weights._errors import (
    MERGE_ADAPTERS,
    MissingKeysError,
    UnexpectedKeysError,
    first_names,
    has_adapters,
    require_same_keys,
)
from attn_np.weights._shards import OpenFile
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import as_tuple, expand_rules


@dataclass(frozen=True)
class LayerPrefixes:
    """The prefixes of one layer's keys, each with the caller's prefix.

    Attributes:
        layer_prefix: of the layer's own keys, such as `encoder.layer.3.`.
        first_layer: of keys stored under layer 0 and used by every layer.
        stack: of keys of the stack of layers, such as `encoder.`.
        layer: the layer's number.
    """

    layer_prefix: str
    first_layer: str
    stack: str
    layer: int

    def key_in_file(self, table: Table, key: str) -> str:
        """A key of the table with its prefix."""
        if key in table.first_layer_keys:
            return self.first_layer + key
        return (self.stack if key in table.keys_beside_layers else self.layer_prefix) + key


def layer_prefixes_for(prefix: str, template: str, layer_prefix: str, layer: int) -> LayerPrefixes:
    """The prefixes of a layer, from the caller's, the layout's template, and the template with the layer's number."""
    stack, dot, _ = template.partition("{layer}")[0].rstrip(".").rpartition(".")
    return LayerPrefixes(prefix + layer_prefix, prefix + template.format(layer=0), prefix + stack + dot, layer)


def locate_layer(
    file: OpenFile, layout: Layout, table: Table, layer: int | None, part: str, prefix: str
) -> LayerPrefixes:
    """The prefixes of a part of a layer in a file.

    Raises:
        MissingKeysError, UnexpectedKeysError, ValueError: as `match_prefix`.
    """
    keys, templates = [key[len(prefix) :] for key in file.entries if key.startswith(prefix)], layout.prefixes_of(part)
    if prefix and not layers_by_prefix(templates, keys_in_layer(table), keys):
        others = prefixes_with_layers(templates, keys_in_layer(table), file.entries)
        if others:
            fix = "leave prefix= out" if others == [""] else "pass what stands before them as prefix="
            got = f"them after {first_names(others)}" if others != [""] else "them without a prefix"
            raise MissingKeysError(file.path, prefix, "the keys of layers after prefix=", got, fix)
    return layer_prefixes_for(prefix, *match_prefix(file.path, templates, table, layer, keys))


def prefixes_with_layers(templates: Sequence[str], table_keys: Sequence[str], keys: Iterable[str]) -> list[str]:
    """What stands before the layers of a file, each found by the first template that it has."""
    patterns = [re.compile("(.*?)" + re.escape(x).replace(re.escape("{layer}"), "[0-9]{1,6}")) for x in templates]
    samples, found = tuple(key.format(n=0) for key in table_keys), {}
    for key in keys:
        start = next((key.removesuffix(sample) for sample in samples if key.endswith(sample)), None)
        matches = [] if start is None else [match for x in patterns if (match := x.fullmatch(start))]
        found |= {matches[0][1]: None} if matches else {}
    return list(found)


def first_prefix(file: OpenFile, layout: Layout, table: Table, layer: int, part: str, prefixes: Sequence[str]) -> str:
    """The first of some prefixes after which a file has the layer; none if it has it after none."""
    for prefix in prefixes:
        with suppress(MissingKeysError):
            locate_layer(file, layout, table, layer, part, prefix)
            return prefix
    return ""


def find_part(layout: Layout, part: str | None) -> str:
    """The name of the part asked for, a block of attention or a stage, or of the only one.

    Raises:
        ValueError: there is none of this name, or there are several and none is asked for.
    """
    parts = layout.parts()
    if part is None and len(parts) == 1:
        return parts[0]
    if part not in parts or (part == "" and parts == ("",)):
        several = len(parts) > 1
        rule = (
            f"part= to be one of {', '.join(parts)}" if several else "no part=, as a layer has one block of attention"
        )
        raise ValueError(f"weights: expected {rule}, got {part!r}; {'name the part' if several else 'leave it out'}")
    return part


def match_prefix(
    path: str, templates: Sequence[str], table: Table, layer: int | None, keys: Sequence[str]
) -> tuple[str, str, int]:
    """The template that a file uses, that template with the layer's number in it, and the number.

    The layer is the one asked for, or with None the only one.

    Raises:
        MissingKeysError: no such layer.
        UnexpectedKeysError: two layers of this number.
        ValueError: several layers and no number, or a `layer` that cannot be one.
    """
    numbered = "{layer}" in templates[0]
    if layer is not None and (not numbered or not is_integer(layer) or layer < 0):
        rule = "layer= to be an integer from 0" if numbered else "no layer=, as this layout has one layer"
        raise ValueError(f"weights: expected {rule}, got {layer!r}; {'correct it' if numbered else 'leave it out'}")
    table_keys = keys_in_layer(table)
    number_and_template = layers_by_prefix(templates, table_keys, keys)
    numbers = sorted({number for number, _ in number_and_template.values()})
    matching_prefixes = [prefix for prefix, (number, _) in number_and_template.items() if layer in (None, number)]
    if len(matching_prefixes) == 1:
        number, template = number_and_template[matching_prefixes[0]]
        return template, matching_prefixes[0], number
    if not matching_prefixes:
        got = f"layers {', '.join(map(str, numbers))}" if numbers else f"keys {first_names(keys)}"
        expected = templates[0].format(layer="*" if layer is None else layer) + table_keys[0].format(n=0)
        fix = "pass the number of one of these" if numbers else "check layout= and prefix="
        fix = MERGE_ADAPTERS if not numbers and has_adapters(keys) else fix
        raise MissingKeysError(path, expected, "a key of this name", got, fix)
    if len({number_and_template[prefix][0] for prefix in matching_prefixes}) == 1:
        fix = "take the other keys out of the file"
        raise UnexpectedKeysError(
            path, matching_prefixes[1], "one layer of each number", f"all of {first_names(matching_prefixes)}", fix
        )
    fix = f"pass layer=, one of {', '.join(map(str, numbers))}"
    raise ValueError(
        f"{path}: expected one layer, got {len(matching_prefixes)} ({first_names(matching_prefixes)}); {fix}"
    )


def keys_in_layer(table: Table) -> tuple[str, ...]:
    """The keys of a table that are in the layer's own part of a file."""
    outside = {*table.first_layer_keys, *table.keys_beside_layers, *table.absent}
    return tuple(key for rule_keys, _ in table.rules.values() for key in as_tuple(rule_keys) if key not in outside)


def layers_by_prefix(
    templates: Sequence[str], table_keys: Sequence[str], keys: Sequence[str]
) -> dict[str, tuple[int, str]]:
    """The number and the template of each layer among keys, by its prefix; 0 for templates without a number."""
    sample_keys = {key.format(n=0) for key in table_keys}
    found: dict[str, tuple[int, str]] = {}
    for template in templates:
        pattern = re.compile(re.escape(template).replace(re.escape("{layer}"), "([0-9]{1,6})"))
        for key in keys:
            match = pattern.match(key)
            if match and key[match.end() :] in sample_keys:
                found[match[0]] = (int(match[1]) if match.groups() else 0, template)
    return found


def checked_ignored_keys(
    file: OpenFile,
    layout: Layout,
    needed: Sequence[str],
    prefix: str,
    layer_prefix: str,
    variant: str,
    attention_prefix: str | None = None,
) -> list[str]:
    """Refuse a file that lacks needed keys or has unknown ones; returns the layer's keys that are ignored.

    With `attention_prefix` only keys that begin with it are known to the layout: those of the rest of the layer and of
    other layers may have any name.

    Raises:
        MissingKeysError, UnexpectedKeysError: a needed key is missing, or a key is neither needed nor in the layout.
    """
    relevant, ignored = [], []
    variants_with: dict[str, list[str]] = {}
    for name, table in layout.tables.items():
        for _, rule_keys, _ in expand_rules(table):
            for rest in rule_keys:
                variants_with.setdefault(rest, []).append(layout.variant_of(name))
    for key in file.entries:
        inside = key.startswith(layer_prefix)
        if attention_prefix is not None and key not in needed and not key.startswith(layer_prefix + attention_prefix):
            ignored += [key] if inside else []
            continue
        patterns, rest = (
            (layout.ignored, key[len(layer_prefix) :]) if inside else (layout.elsewhere, key[len(prefix) :])
        )
        if key not in needed and any(fnmatchcase(rest, pattern) for pattern in patterns):
            ignored += [key] if inside else []
        elif key.startswith(prefix):
            unsupported_part = next(
                (words for pattern, words in layout.unsupported.items() if inside and fnmatchcase(rest, pattern)), ""
            )
            if unsupported_part and key not in needed:
                expected, fix = (
                    f"a module without {unsupported_part}",
                    "build the module without, or use its own library",
                )
                raise UnexpectedKeysError(file.path, key, expected, "one with this tensor", fix)
            others = variants_with.get(rest, []) if inside and key not in needed else []
            if others and variant not in others:
                fix = f"pass variant={others[0]!r} if the module is one; no layer here has the parts of both"
                raise UnexpectedKeysError(file.path, key, f"{variant!r} without {rest}", "this tensor", fix)
            relevant.append(key)
    require_same_keys(file.path, needed, relevant)
    return ignored
