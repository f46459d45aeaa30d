"""Our weight files: what they say about themselves, and everything that is checked before a layer gets its weights."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config, nearest
from attn_np.weights import layouts
from attn_np.weights._check import Wanted, WeightFile, accepted, agree, check, digest, one_dtype
from attn_np.weights._errors import (
    ConfigMismatchError,
    DigestMismatchError,
    HeaderSyntaxError,
    LayoutTagError,
    compare_keys,
    compare_shape,
    listed,
)
from attn_np.weights._foreign import convert_from, read_foreign, write_foreign
from attn_np.weights._header import CODES, parsed, write_tensors
from attn_np.weights._shards import Tensors, opened
from attn_np.weights.layouts import _base

FORMAT = "attn-parity/1"


def read(
    path: str | PathLike[str],
    *,
    config: Config | None = None,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    dtype: str | None = None,
    cast: bool = False,
    finite: bool = True,
    **fields: Any,
) -> WeightFile:
    """Read a weight file and check it whole before anything is handed out.

    Args:
        path: the file, or the index of its shards (`*.safetensors.index.json`).
        config: the config that the file must have, as for loading into a layer.
        layout: name of a foreign layout, or of the variant that the file holds where another one is wanted; None for
            a file of ours as it is.
        variant: the variant wanted, where the layout has several.
        layer: number of the layer, where the layout has several.
        part: which block of attention, where a layer has several, such as "cross".
        prefix: what stands before the layout's keys; keys without it are left alone.
        dtype: the dtype wanted; the file's own by default.
        cast: allow another dtype in the file, rounded once; beyond the range is refused all the same.
        finite: refuse NaN and infinities.
        fields: fields of the config, where the file cannot say them; where it does they must agree.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        ValueError, TypeError: arguments that cannot be right.
    """
    if variant is not None:
        contract.get(variant)
    if variant in contract.presets():
        variant, preset = contract.presets()[variant]
        fields = {**preset.fields, **fields}
    if config is not None and variant not in (None, config.variant):
        raise ValueError(f"expected variant {config.variant!r} for this layer, got {variant!r}; leave it out")
    foreign = layout if layout not in (None, *contract.variants()) else None
    if foreign is None and (layer is not None or part is not None or prefix):
        given = (
            f"layer={layer}" if layer is not None else f"part={part!r}" if part is not None else f"prefix={prefix!r}"
        )
        raise ValueError(
            f"expected a foreign layout= with layer= or prefix=, got {given} alone; name the file's layout"
        )
    wanted = Wanted(config, config.variant if config else variant, fields, dtype, cast, finite)
    if foreign is not None:
        layouts.get(foreign)
    with opened(path) as file:
        return read_foreign(file, foreign, layer, part, prefix, wanted) if foreign else _read_ours(file, layout, wanted)


def _read_ours(file: Tensors, held: str | None, wanted: Wanted) -> WeightFile:
    config = _tagged(file, held or wanted.variant)
    shapes, axes = config.shapes(), {name: param.axes for name, param in config.params().items()}
    compare_keys(file.path, list(shapes), list(file.entries))
    for name, shape in shapes.items():
        compare_shape(file.path, name, shape, file.entries[name].shape, axes[name])
    kind = one_dtype(file.path, {name: file.entries[name].dtype for name in shapes}, wanted.dtype, wanted.cast)
    if wanted.variant in (None, config.variant):
        agree(file.path, config, wanted)
    digests = _digests(file)
    values = {}
    for name in shapes:
        x = file.read(name)
        if digest(x) != digests[name]:
            todo = "get the file again, or write it again from the layer"
            raise DigestMismatchError(file.path, name, f"SHA-256 {digests[name]}", digest(x), todo)
        values[name] = accepted(file.path, name, x, kind, wanted.finite)
    if wanted.variant not in (None, config.variant):
        config, values = convert_from(file.path, config, values, wanted.variant)
        agree(file.path, config, wanted)
    training = {name: wanted.fields[name] for name in _base.TRAINING if name in wanted.fields}
    return WeightFile(file.path, replace(config, **training), kind, values)


def _tagged(file: Tensors, variant: str | None) -> Config:
    """The config that a file of ours states about itself."""
    tag = file.metadata.get("format")
    if tag != FORMAT:
        family = FORMAT.rpartition("/")[0] + "/"
        known = f"name its layout=, one of {', '.join(layouts.names())}"
        todo = "it comes from a newer version; update attn-parity" if (tag or "").startswith(family) else known
        raise LayoutTagError(file.path, "format", f"{FORMAT} in the metadata", repr(tag), todo)
    for name in ("variant", "config", "axes", "sha256", "header_sha256"):
        if name not in file.metadata:
            raise HeaderSyntaxError(file.path, name, "this field in the metadata", "none", "write the file again")
    got = file.metadata["variant"]
    if got not in contract.variants():
        todo = nearest(got, contract.variants())
        raise ConfigMismatchError(file.path, "variant", "the name of a variant", repr(got), todo)
    if variant not in (None, got):
        todo = f"pass variant={got!r}, or layout={got!r} to have it converted"
        raise ConfigMismatchError(file.path, "variant", repr(variant), repr(got), todo)
    fields = _json(file, "config")
    try:
        config = contract.config(got, **fields)
    except (ValueError, TypeError) as error:
        todo = "write the file again from the layer"
        raise ConfigMismatchError(file.path, "config", f"a config of {got}", str(error), todo) from error
    axes = {name: param.axes for name, param in config.params().items()}
    if _json(file, "axes") != axes:
        found = file.metadata["axes"][:200]
        todo = "write the file again from the layer"
        raise LayoutTagError(file.path, "axes", json.dumps(axes)[:200], found, todo)
    return config


def _json(file: Tensors, name: str) -> dict[str, Any]:
    return parsed(file.path, file.metadata[name].encode(), f"a metadata field {name!r}")


def _digests(file: Tensors) -> dict[str, str]:
    """The digest of every tensor, from a header whose own digest is right."""
    stated = seal(file.metadata, {name: (entry.code, entry.shape) for name, entry in file.entries.items()})
    if file.metadata["header_sha256"] != stated:
        expected, todo = f"a header of SHA-256 {file.metadata['header_sha256'][:64]}", "get the file again"
        raise DigestMismatchError(file.path, "__metadata__", expected, stated, todo)
    found = _json(file, "sha256")
    if set(found) != set(file.entries):
        raise DigestMismatchError(file.path, "sha256", "a digest per tensor", listed(found), "write the file again")
    return found


def seal(metadata: Mapping[str, str], entries: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """SHA-256 of what a header says: every metadata field but this one, every tensor's dtype and shape.

    With the digests of the tensors, which are metadata, it covers every bit that counts.
    """
    fields = sorted((name, value) for name, value in metadata.items() if name != "header_sha256")
    stated = [fields, sorted((name, code, list(shape)) for name, (code, shape) in entries.items())]
    return hashlib.sha256(json.dumps(stated, separators=(",", ":")).encode()).hexdigest()


def write(
    path: str | PathLike[str],
    config: Config,
    values: Mapping[str, np.ndarray],
    *,
    layout: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    finite: bool = True,
) -> None:
    """Write parameters to a file, whole or not at all: the file has its old content or the new one at any moment.

    Args:
        path: the file.
        config: what the parameters belong to.
        values: every parameter by its dotted name.
        layout: name of a foreign layout; None for a file of ours.
        layer: number of the layer in the foreign names, 0 by default.
        part: which block of attention, where a layer has several.
        prefix: what to put before the foreign names.
        finite: refuse NaN and infinities.

    Raises:
        WeightFileError: parameters that do not fit the config, or a config that the layout cannot hold.
    """
    file = os.fspath(path)
    check(config, values, file, finite=finite)
    if layout is not None:
        write_foreign(file, config, values, layout, layer, part, prefix)
        return
    if layer is not None or part is not None or prefix:
        raise ValueError("expected layout= with layer= or prefix=, got none; name the layout to write")
    metadata = {
        "format": FORMAT,
        "variant": config.variant,
        "config": json.dumps(config.as_dict(), sort_keys=True),
        "axes": json.dumps({name: param.axes for name, param in config.params().items()}, sort_keys=True),
        "version": library_version(),
        "sha256": json.dumps({name: digest(values[name]) for name in sorted(values)}),
    }
    entries = {name: (CODES[x.dtype.name], x.shape) for name, x in values.items()}
    write_tensors(path, values, metadata | {"header_sha256": seal(metadata, entries)})


def library_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and needed for writing only

    try:
        return version("attn-parity")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return "0"
