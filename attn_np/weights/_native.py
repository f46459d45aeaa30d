"""Files with our own parameter names: one layer with its config as metadata, or one of many in a whole model's file."""

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

from attn_np import contract
from attn_np.contract import Config, did_you_mean
from attn_np.contract._projections import all_projections
from attn_np.weights import layouts
from attn_np.weights._check import LayerWeights, Request, checked_cast, common_dtype, digest, require_agreement
from attn_np.weights._convert import conversions, convert_unchecked
from attn_np.weights._errors import (
    ConfigMismatchError,
    DigestMismatchError,
    FormatMismatchError,
    HeaderSyntaxError,
    MissingKeysError,
    first_names,
    has_adapters,
    require_same_keys,
    require_shape,
)
from attn_np.weights._safetensors import CODES, parse_json, write_tensors
from attn_np.weights._shards import OpenFile
from attn_np.weights.layouts._base import TRAINING_FIELDS

FORMAT = "attn-parity/1"
# Prefixes of a whole model's file that an error chooses the nearest from.
MAX_PREFIXES = 128


def read_native(file: OpenFile, file_variant: str | None, prefix: str, request: Request) -> LayerWeights:
    """A layer of a file with our own names.

    Args:
        file: the open file.
        file_variant: the file's variant, if the caller names it; None if the metadata or a layer to load into does.
        prefix: what comes before the layer's names.
        request: the caller's conditions.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        TypeError: a field that the variant does not have, or one that is missing where there is no metadata.
    """
    metadata = file.metadata_of(key for key in file.entries if key.startswith(prefix))
    tagged = metadata.get("format") == FORMAT
    if tagged:
        prefix = metadata_prefix(file, metadata, prefix)
        config = metadata_config(file, metadata, file_variant, request)
    else:
        config = caller_config(file, metadata, file_variant, prefix, request)
    stored, shapes = locate_params(file, config, prefix), config.shapes()
    for entry in stored.values():
        require_shape(file.path, entry.key, entry.shape, file.entries[entry.key].shape, entry.axes)
    dtypes = {entry.key: file.entries[entry.key].dtype for entry in stored.values()}
    dtype = common_dtype(file.path, dtypes, request)
    same_variant = request.target_variant in (None, config.variant)
    if same_variant:
        require_agreement(file.path, config, request)
    digests = metadata_digests(file, metadata) if tagged else {}
    values = {}
    for name, entry in stored.items():
        key, x = entry.key, file.read(entry.key)
        if tagged and digest(x) != digests[key]:
            fix = "get the file again, or write it again from the layer"
            raise DigestMismatchError(file.path, key, f"SHA-256 {digests[key]}", digest(x), fix)
        x = checked_cast(file.path, key, x, dtype, request.finite)
        values[name] = (x.T if entry.transposed else x).reshape(shapes[name])
    if not same_variant:
        config, values = convert_unchecked(file.path, config, values, str(request.target_variant))
        require_agreement(file.path, config, request if tagged else Request(request.into_config))
    training_fields = {name: request.fields[name] for name in TRAINING_FIELDS if name in request.fields}
    return LayerWeights(file.path, replace(config, **training_fields), dtype, values)


def write_native(path: str, config: Config, values: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """Write parameters under our own names, with everything that `read_native` checks as metadata."""
    for name, value in config.as_dict().items():
        if callable(value):
            fix = "write params() by safetensors' save_file, and load that with variant= and the fields of the layer"
            raise ConfigMismatchError(path, name, "a field that a file can hold", "a function", fix)
    arrays = {prefix + name: x for name, x in values.items()}
    metadata = {
        "format": FORMAT,
        "variant": config.variant,
        "config": json.dumps(config.as_dict(), sort_keys=True),
        "axes": json.dumps({name: param.axes for name, param in config.params().items()}, sort_keys=True),
        "version": library_version(),
        "sha256": json.dumps({key: digest(arrays[key]) for key in sorted(arrays)}),
    }
    metadata |= {"prefix": prefix} if prefix else {}
    entries = {key: (CODES[x.dtype.name], x.shape) for key, x in arrays.items()}
    write_tensors(path, arrays, metadata | {"header_sha256": header_digest(metadata, entries)})


def header_digest(metadata: Mapping[str, str], entries: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """SHA-256 of a header: every metadata field but this one, every tensor's dtype and shape.

    With the digests of the tensors, which are metadata, it covers every bit that counts.
    """
    fields = sorted((name, value) for name, value in metadata.items() if name != "header_sha256")
    header = [fields, sorted((name, code, list(shape)) for name, (code, shape) in entries.items())]
    return hashlib.sha256(json.dumps(header, separators=(",", ":")).encode()).hexdigest()


# Where the layer is, and its config -----------------------------------------------------------------------------------


class Stored(NamedTuple):
    """How a file has a parameter: under which key, of which shape and axes, and whether outputs come first."""

    key: str
    shape: tuple[int, ...]
    axes: str
    transposed: bool = False


def stored_params(config: Config, prefix: str, keys: Container[str]) -> dict[str, Stored]:
    """Every parameter as a file has it: an array, or part of a module of PyTorch or Flax where the keys say so."""
    shapes, params = config.shapes(), config.params()
    stored = {name: Stored(prefix + name, shapes[name], param.axes) for name, param in params.items()}
    for within, projection in all_projections(config):
        module, sizes = f"{prefix}{within}{projection.name}", (projection.in_features, projection.out_features)
        inputs, outputs = (" ".join(x) for x in (projection.input_letters, projection.output_letters))
        if f"{module}.weight" in keys:
            weight = Stored(f"{module}.weight", sizes[::-1], f"({outputs}) ({inputs})", transposed=True)
        elif f"{module}.kernel" in keys:
            weight = Stored(f"{module}.kernel", sizes, f"({inputs}) ({outputs})")
        else:
            continue
        stored[within + projection.name] = weight
        if projection.bias is not None:
            stored[within + projection.bias] = Stored(f"{module}.bias", sizes[1:], f"({outputs})")
    return stored


def locate_params(file: OpenFile, config: Config, prefix: str) -> dict[str, Stored]:
    """Where and how the file has every parameter.

    Raises:
        MissingKeysError: no such prefix, with the nearest of the file; or a parameter that is not there.
        UnexpectedKeysError: a key with the prefix that is not a parameter.
    """
    stored = stored_params(config, prefix, file.entries)
    keys = {name: entry.key for name, entry in stored.items()}
    present = [key for key in file.entries if key.startswith(prefix)]
    if keys and not has_adapters(present) and not set(keys.values()) & set(present):
        first, expected = next(iter(keys)), f"the parameters of {config.variant}"
        expected += f" after the prefix {prefix!r}" if prefix else ""
        prefixes = prefixes_before(first, list(file.entries))
        if prefixes:
            got, fix = f"other prefixes {first_names(prefixes)}", did_you_mean(prefix, prefixes[:MAX_PREFIXES])
            raise MissingKeysError(file.path, prefix + first, expected, got, f"for prefix= {fix}")
        got, fix = f"keys {first_names(file.entries)}", "check variant=, or name the layout= that they are in"
        raise MissingKeysError(file.path, prefix + first, expected, got, fix)
    require_same_keys(file.path, list(keys.values()), present, config, prefix)
    return stored


def prefixes_before(name: str, keys: Sequence[str]) -> list[str]:
    """The prefixes before a parameter's name among some keys, one for each layer of a model."""
    names = (name, f"{name}.weight", f"{name}.kernel")  # as an array, or in a module
    ends = {key: next((end for end in names if f".{key}".endswith(f".{end}")), None) for key in keys}
    return [key.removesuffix(end) for key, end in ends.items() if end is not None]


def metadata_prefix(file: OpenFile, metadata: Mapping[str, str], prefix: str) -> str:
    """The prefix of a file of ours, which is the caller's if there is one.

    Raises:
        MissingKeysError: the caller names another.
    """
    file_prefix = metadata.get("prefix", "")
    if prefix not in ("", file_prefix):
        fix = f"pass prefix={file_prefix!r}" if file_prefix else "leave prefix= out"
        raise MissingKeysError(
            file.path, prefix, f"a layer with the prefix {prefix!r}", f"one with {file_prefix!r}", fix
        )
    return file_prefix


def metadata_config(file: OpenFile, metadata: Mapping[str, str], file_variant: str | None, request: Request) -> Config:
    """The config in the metadata of a file of ours.

    Args:
        file_variant: the file's variant as the caller names it; None if it is to be that of the request.

    Raises:
        ConfigMismatchError: no possible config, or one of another variant than the caller's.
        HeaderSyntaxError, FormatMismatchError: a field that is missing, or axes that are not the variant's.
    """
    for name in ("variant", "config", "axes", "sha256", "header_sha256"):
        if name not in metadata:
            raise HeaderSyntaxError(file.path, name, "this field in the metadata", "none", "write the file again")
    variant_in_file, expected = metadata["variant"], file_variant or request.target_variant
    # Older files name by itself what is a preset of another variant today.
    metadata_variant, _ = contract.presets().get(variant_in_file, (variant_in_file, None))
    if metadata_variant not in contract.variants():
        fix = did_you_mean(metadata_variant, contract.variants())
        raise ConfigMismatchError(file.path, "variant", "the name of a variant", repr(metadata_variant), fix)
    if expected not in (None, metadata_variant):
        fix = [
            f"pass variant={metadata_variant!r}"
            if request.into_config is None
            else f"load it into a layer of {metadata_variant}"
        ]
        if request.target_variant in conversions(metadata_variant):
            fix.append(f"pass layout={metadata_variant!r} to have it converted")
        raise ConfigMismatchError(file.path, "variant", repr(expected), repr(metadata_variant), ", or ".join(fix))
    fields, fix = metadata_object(file, metadata, "config"), "write the file again from the layer"
    try:
        config = contract.config(variant_in_file, **fields)
    except (ValueError, TypeError) as error:
        raise ConfigMismatchError(file.path, "config", f"a config of {metadata_variant}", str(error), fix) from error
    axes = {name: param.axes for name, param in config.params().items()}
    if metadata_object(file, metadata, "axes") not in (axes, axes_by_query_width(config)):
        raise FormatMismatchError(file.path, "axes", json.dumps(axes)[:200], metadata["axes"][:200], fix)
    return config


def axes_by_query_width(config: Config) -> dict[str, str]:
    """The axes of every parameter, with `d` in the place of `i` and `j` where these widths are equal to that of `d`.

    Older files have these axes: the variant took only keys and values as wide as the queries then.
    """
    sizes, axes = config.sizes(), {name: param.axes for name, param in config.params().items()}
    widths = [letter for letter in "ij" if sizes.get(letter) == sizes.get("d")]
    axis_letters = {name: axes[name].split() for name in config.own_params()}
    return axes | {name: " ".join("d" if x in widths else x for x in letters) for name, letters in axis_letters.items()}


def caller_config(
    file: OpenFile, metadata: Mapping[str, str], file_variant: str | None, prefix: str, request: Request
) -> Config:
    """The config of a file without our metadata: that of the layer to load into, else the caller's variant and fields.

    Shapes alone cannot tell our names and axes from others', so the caller has to say that they are ours.

    Raises:
        FormatMismatchError: a newer format; or nobody says that the names are ours: no variant is named, and no
            layer to load into together with a prefix.
        TypeError: a field that is missing or that the variant does not have.
    """
    tag = metadata.get("format")
    if (tag or "").startswith(FORMAT.rpartition("/")[0] + "/"):
        fix = "it comes from a newer version; update attn-parity"
        raise FormatMismatchError(file.path, "format", f"{FORMAT} in the metadata", repr(tag), fix)
    target = request.into_config
    if target is not None and (prefix or file_variant) and file_variant in (None, target.variant):
        return target  # the caller's fields are compared with it as with a file's
    if file_variant is not None:
        return contract.config(file_variant, **request.fields)
    ours = "pass variant= and the fields of its Config if the names are ours"
    fix = f"{ours}, else name its layout=, such as 'llama' or 'torch_mha', of the {len(layouts.names())} in the docs"
    raise FormatMismatchError(file.path, "format", f"{FORMAT} in the metadata", repr(tag), fix)


def metadata_object(file: OpenFile, metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """The JSON object in a metadata field."""
    return parse_json(file.path, metadata[name].encode(), f"a metadata field {name!r}")


def metadata_digests(file: OpenFile, metadata: Mapping[str, str]) -> dict[str, str]:
    """The digest of every tensor, from a header whose own digest is right.

    Raises:
        DigestMismatchError: the header's digest is wrong, or a tensor has none.
    """
    actual = header_digest(metadata, {name: (entry.code, entry.shape) for name, entry in file.entries.items()})
    if metadata["header_sha256"] != actual:
        expected, fix = f"a header of SHA-256 {metadata['header_sha256'][:64]}", "get the file again"
        raise DigestMismatchError(file.path, "__metadata__", expected, actual, fix)
    digests = metadata_object(file, metadata, "sha256")
    if set(digests) != set(file.entries):
        got = first_names(digests)
        raise DigestMismatchError(file.path, "sha256", "a digest per tensor", got, "write the file again")
    return digests


def library_version() -> str:
    """The version of this library; "0" in a checkout that is not installed."""
    try:
        return version("attn-parity")
    except PackageNotFoundError:
        return "0"
