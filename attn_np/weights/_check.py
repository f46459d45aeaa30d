"""What is checked before a layer gets its weights: names, shapes, one float dtype, finite values, the config."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config, check_dtype
from attn_np.weights._cast import DTYPES, rounded
from attn_np.weights._errors import (
    ConfigMismatchError,
    DtypeMismatchError,
    NonFiniteWeightError,
    compare_keys,
    compare_shape,
)
from attn_np.weights.layouts._base import differences


@dataclass(frozen=True)
class WeightFile:
    """What a file gave: a config, and every parameter by its dotted name, checked against it.

    Attributes:
        path: where it was read.
        config: the contract's Config; `config.variant` names the variant.
        dtype: name of the parameters' float dtype; None for a variant without parameters.
        values: the parameters, arrays of their own.
    """

    path: str
    config: Config
    dtype: str | None
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Wanted:
    """What a caller asks of a file: a config it must have or fields of one, and the dtype."""

    config: Config | None = None
    variant: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    cast: bool = False
    finite: bool = True


def check(
    config: Config, values: Mapping[str, Any], where: str | PathLike[str] = "weights", *, finite: bool = True
) -> str | None:
    """Refuse parameters that do not fit a config: their names, shapes, one float dtype, and finite values.

    Returns:
        The dtype's name; None for a variant without parameters.

    Raises:
        WeightFileError: naming `where`, the key, what was expected and what was found.
    """
    file = os.fspath(where)
    shapes, axes = config.shapes(), {name: param.axes for name, param in config.params().items()}
    compare_keys(file, list(shapes), list(values))
    for name, shape in shapes.items():
        compare_shape(file, name, shape, tuple(values[name].shape), axes[name])
    dtype = one_dtype(file, {name: np.dtype(values[name].dtype).name for name in shapes}, None, False)
    for name in shapes if finite else ():
        require_finite(file, name, values[name])
    return dtype


def require_savable(package: str, layer: Any, base: type, path: Any) -> None:
    """Refuse to save what is no layer of a package, or to what is no path.

    Raises:
        TypeError: saying what was given.
    """
    if not isinstance(getattr(layer, "_orig_mod", layer), base):  # what torch.compile gives wraps the layer
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
        todo = "call save(layer, path), of the layer's own package"
        raise TypeError(f"{package}.save: expected a layer of {package} first, got {kind}; {todo}")
    if not isinstance(path, str | PathLike):
        raise TypeError(
            f"{package}.save: expected a path second, got {type(path).__qualname__}; call save(layer, path)"
        )


def wanted_dtype(config: Config | None, params: Mapping[str, Any], dtype: Any) -> str | None:
    """The dtype that a caller of `load` wants: the one asked for, which must be that of the layer to load into.

    Raises:
        ValueError: not a float dtype, not the layer's, or a layer with several.
    """
    variant = "load" if config is None else config.variant
    asked = None if dtype is None else check_dtype(variant, dtype)
    held = sorted({check_dtype(variant, x.dtype) for x in params.values()})
    if len(held) > 1:
        raise ValueError(f"{variant}: expected one dtype over the layer, got {', '.join(held)}; convert its parameters")
    if asked and held and asked != held[0]:
        todo = "leave dtype= out, or load a new layer"
        raise ValueError(f"{variant}: expected dtype {held[0]!r}, the layer's, got {asked!r}; {todo}")
    return held[0] if held else asked


def agree(file: str, found: Config, wanted: Wanted) -> None:
    """Refuse a config that is not the layer's, or not what the caller says.

    Raises:
        ConfigMismatchError: naming the fields that differ.
        TypeError: a field that the variant does not have.
    """
    for config in (wanted.config, contract.config(found.variant, **(found.as_dict() | dict(wanted.fields)))):
        if config is None:
            continue
        different = differences(config, found)
        if different:
            expected = ", ".join(f"{name}={getattr(config, name)!r}" for name in different)
            got = ", ".join(f"{name}={getattr(found, name)!r}" for name in different)
            todo = "build the layer with the file's config, or choose another file"
            raise ConfigMismatchError(file, "config", expected, got, todo)


def one_dtype(file: str, found: Mapping[str, str], wanted: str | None, cast: bool) -> str | None:
    """The dtype that the parameters will have: one for all, the file's own unless a cast is asked for.

    Raises:
        DtypeMismatchError: a tensor of another dtype, and no cast asked for.
        ValueError: a dtype that layers do not have.
    """
    if wanted is None and cast:
        raise ValueError("expected dtype= with cast=True, got none; name the dtype to cast to")
    if wanted is not None and wanted not in DTYPES:
        raise ValueError(f"expected dtype to be one of {', '.join(DTYPES)}, got {wanted!r}; set dtype=")
    kind = wanted or next(iter(found.values()), None)
    for name, dtype in found.items():
        if kind not in DTYPES:
            todo = "pass dtype= and cast=True where its numbers are the weights"
            raise DtypeMismatchError(file, name, f"one of {', '.join(DTYPES)}", dtype, todo)
        if dtype != kind and not cast:
            todo = "pass cast=True to have it rounded once, or ask for the file's own dtype"
            raise DtypeMismatchError(file, name, str(kind), dtype, todo)
    return kind


def accepted(file: str, name: str, x: np.ndarray, dtype: str | None, finite: bool) -> np.ndarray:
    """A tensor in the dtype wanted, with all that may be lost by it refused."""
    if dtype is None or x.dtype.name == dtype:
        if finite:
            require_finite(file, name, x)
        return x
    if x.dtype.name not in DTYPES and x.dtype.kind not in "iu":
        raise DtypeMismatchError(file, name, dtype, x.dtype.name, "convert the file where its meaning is known")
    if finite:
        require_finite(file, name, x)
    y = rounded(x, dtype)
    if x.dtype.kind in "iu":
        if any(int(a) != float(b) for a, b in zip(x.flat, y.flat, strict=True)):  # exact: Python compares both whole
            found = f"integers ({x.dtype.name}) that it does not hold"
            raise DtypeMismatchError(file, name, dtype, found, "cast to a wider dtype")
    elif np.any(np.isinf(y) & np.isfinite(x)):
        largest = float(np.max(np.abs(x[np.isfinite(x)].astype(np.float64))))
        found = f"{x.dtype.name} up to {largest:.6g}, beyond its range"
        raise DtypeMismatchError(file, name, dtype, found, "cast to a dtype of wider range")
    return y


def require_finite(file: str, name: str, x: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # bfloat16 warns of a signalling NaN
        good = np.isfinite(x)
    if not np.all(good):
        first = tuple(map(int, np.argwhere(~good)[0]))
        found = f"{int(np.sum(~good))} NaN or infinite, the first at {first}"
        todo = "choose a checkpoint from before that, or pass finite=False to take it as it is"
        raise NonFiniteWeightError(file, name, "finite numbers", found, todo)


def digest(x: np.ndarray) -> str:
    """SHA-256 of an array's bytes, in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data).hexdigest()
