"""The checks before a layer gets its weights: names, shapes, one float dtype, finite values, the config."""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import PathLike
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config, float_dtype_name
from attn_np.weights._cast import DTYPES, round_to
from attn_np.weights._errors import (
    ConfigMismatchError,
    DtypeMismatchError,
    NonFiniteWeightError,
    require_same_keys,
    require_shape,
)
from attn_np.weights.layouts._base import differences


@dataclass(frozen=True)
class LayerWeights:
    """One layer's checked config and parameters.

    Attributes:
        path: the file.
        config: the contract's Config; `config.variant` names the variant.
        dtype: name of the parameters' float dtype; None for a variant without parameters.
        values: the parameters by their dotted names, arrays of their own.
    """

    path: str
    config: Config
    dtype: str | None
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Request:
    """A caller's conditions on a file: a config or fields of one, and the dtype.

    Attributes:
        into_config: the config of the layer to load into, if there is one.
        target_variant: the variant to return.
        fields: config fields.
        dtype: the dtype to return; the file's own if None.
        cast: whether another dtype in the file is rounded to it.
        finite: whether NaN and infinities are refused.
    """

    into_config: Config | None = None
    target_variant: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    cast: bool = False
    finite: bool = True


def check(
    config: Config, values: Mapping[str, Any], where: str | PathLike[str] = "weights", *, finite: bool = True
) -> str | None:
    """Refuse parameters of other names or shapes than a config's, of several dtypes, or not finite; returns the dtype.

    Raises:
        WeightFileError: naming `where`, the key, the rule and the value that breaks it.
    """
    path = os.fspath(where)
    shapes, axes = config.shapes(), {name: param.axes for name, param in config.params().items()}
    require_same_keys(path, list(shapes), list(values), config)
    for name, shape in shapes.items():
        require_shape(path, name, shape, tuple(values[name].shape), axes[name])
    dtype = common_dtype(path, {name: np.dtype(values[name].dtype).name for name in shapes}, Request())
    for name in shapes if finite else ():
        require_finite(path, name, values[name])
    return dtype


def require_layer_of(base: type, layer: Any, expected: str, fix: str) -> None:
    """Refuse anything but a layer of the package whose layers have this base.

    Raises:
        TypeError: naming its type.
    """
    if not isinstance(getattr(layer, "_orig_mod", layer), base):  # torch.compile wraps the layer
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
        raise TypeError(f"{expected}, got {kind}; {fix}, of the layer's own package")


# Arguments of other libraries and of each other that `load` and `load_pretrained` do not have.
OTHER_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "load": {"torch_dtype": "write dtype=", "device_map": "write device="},
    "load_pretrained": {
        "torch_dtype": "write dtype=",
        "device_map": "write device=",
        "into": "call load(file, layout=, layer=, into=layer)",
        "config": "leave it out, as config.json says it",
        "variant": "leave it out, as config.json says it",
    },
}


# Those that both have, and those of each.
SHARED_ARGUMENTS = ("layout", "layer", "part", "prefix", "dtype", "cast", "finite", "device", "projections")
OWN_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "load": (*SHARED_ARGUMENTS, "into", "config", "variant"),
    "load_pretrained": (*SHARED_ARGUMENTS, "allow", "dequantize", "report"),
}


def refuse_other_arguments(who: str, fields: Mapping[str, Any]) -> None:
    """Refuse fields that are arguments of another function, or nearly those of this one, each with what to write.

    Raises:
        TypeError: naming the first.
    """
    for name in fields:
        fix = OTHER_ARGUMENTS[who].get(name, "")
        if not fix and get_close_matches(name, OWN_ARGUMENTS[who], n=1, cutoff=0.6):
            known = [field for variant in contract.variants() for field in contract.get(variant).Config.fields()]
            close = get_close_matches(name, dict.fromkeys((*OWN_ARGUMENTS[who], *known)), n=1, cutoff=0.6)
            fix = f"did you mean {close[0]}=?" if close[0] in OWN_ARGUMENTS[who] else ""
        if fix:
            raise TypeError(f"{who}: expected its own arguments or fields of the Config, got {name}=; {fix}")


def check_prefix(prefix: Any) -> None:
    """Refuse a prefix of names that is not a string.

    Raises:
        TypeError: naming its type.
    """
    if not isinstance(prefix, str):
        fix = "pass what comes before the names, such as 'blocks.0.attn.'"
        raise TypeError(f"weights: expected prefix= to be a string, got {type(prefix).__name__}; {fix}")


def requested_dtype(config: Config | None, params: Mapping[str, Any], dtype: Any) -> str | None:
    """The dtype to load: that of the layer to load into, which `dtype` must not contradict; without one, `dtype`.

    Raises:
        ValueError: not a float dtype, not the layer's, or a layer with several.
    """
    variant = "load" if config is None else config.variant
    argument = None if dtype is None else float_dtype_name(variant, dtype)
    dtypes = sorted({float_dtype_name(variant, x.dtype) for x in params.values()})
    if len(dtypes) > 1:
        got = ", ".join(dtypes)
        raise ValueError(f"{variant}: expected one dtype over the layer, got {got}; convert its parameters")
    if argument and dtypes and argument != dtypes[0]:
        fix = "leave dtype= out, or load a new layer"
        raise ValueError(f"{variant}: expected dtype {dtypes[0]!r}, the layer's, got {argument!r}; {fix}")
    return dtypes[0] if dtypes else argument


def require_config(own: Config | None, config: Any, fields: Mapping[str, Any]) -> Config | None:
    """The config that a file must have: that of the layer to load into, or the caller's; None if there is neither.

    Raises:
        TypeError: a caller's that is no Config.
        ValueError: a caller's beside the layer's or beside fields.
    """
    if config is None:
        return own
    if not isinstance(config, Config):
        raise TypeError(f"load: expected config= to be a Config, got {type(config).__name__}; pass its fields by name")
    if own is not None or fields:
        got = "into=" if own is not None else ", ".join(f"{name}=" for name in fields)
        raise ValueError(f"load: expected config= without into= and fields, got {got}; leave one of them out")
    return config


def require_agreement(path: str, config: Config, request: Request) -> None:
    """Refuse a file's config that differs from the layer's, or from the caller's fields.

    Raises:
        ConfigMismatchError: naming the fields that differ.
        TypeError: a field that the variant does not have.
    """
    with_fields = contract.config(config.variant, **(config.as_dict() | dict(request.fields)))
    for expected in filter(None, (request.into_config, with_fields)):
        different = differences(expected, config)
        if different:
            rule = ", ".join(f"{name}={getattr(expected, name)!r}" for name in different)
            got = ", ".join(f"{name}={getattr(config, name)!r}" for name in different)
            fix = "build the layer with the file's config, or choose another file"
            raise ConfigMismatchError(path, "config", rule, got, fix)


def common_dtype(path: str, dtypes: Mapping[str, str], request: Request) -> str | None:
    """The one dtype for all parameters: the one asked for, else the file's own.

    Raises:
        DtypeMismatchError: a tensor of another dtype, without `cast`.
        ValueError: a dtype that layers do not have, or `cast` without a dtype.
    """
    dtype, cast = request.dtype, request.cast
    if dtype is None and cast:
        raise ValueError("weights: expected dtype= with cast=True, got none; name the dtype to cast to")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"weights: expected dtype to be one of {', '.join(DTYPES)}, got {dtype!r}; set dtype=")
    found = Counter(dtypes.values())
    # Without dtype= the one of most tensors, so that the error names the odd one; of equally common ones the first.
    commonest = max((name for name in found if name in DTYPES), key=found.__getitem__, default=None)
    target = dtype or commonest
    for name, tensor_dtype in dtypes.items():
        if dtype is None and tensor_dtype not in DTYPES:
            fix = "pass dtype= and cast=True if its numbers are the weights"
            raise DtypeMismatchError(path, name, f"one of {', '.join(DTYPES)}", tensor_dtype, fix)
        if tensor_dtype != target and not cast:
            wider = tensor_dtype in DTYPES and np.can_cast(DTYPES[tensor_dtype], DTYPES[str(target)])
            how = "widened, which is exact" if wider else "rounded once"
            if dtype is None:
                fix = "convert all to one dtype, or load with dtype= and cast=True"
            else:
                other = (
                    "leave dtype= out" if request.into_config is None else f"load into a layer of dtype {tensor_dtype}"
                )
                fix = f"pass cast=True to have it {how}, or {other}"
            rule = str(target) if dtype else f"{target}, as {found[str(target)]} of the {len(dtypes)} tensors have"
            raise DtypeMismatchError(path, name, rule, tensor_dtype, fix)
    return target


def checked_cast(path: str, name: str, x: np.ndarray, dtype: str | None, finite: bool) -> np.ndarray:
    """A tensor in another dtype, or as it is for None; refused if the cast would lose more than rounding does.

    Raises:
        DtypeMismatchError: a value beyond the dtype's range, an integer that it does not have, or no numbers at all.
        NonFiniteWeightError: NaN or an infinity, with `finite`.
    """
    if dtype is None or x.dtype.name == dtype:
        if finite:
            require_finite(path, name, x)
        return x
    if x.dtype.name not in DTYPES and x.dtype.kind not in "iu":
        raise DtypeMismatchError(path, name, dtype, x.dtype.name, "convert the file with the library that wrote it")
    if finite:
        require_finite(path, name, x)
    y = round_to(x, dtype)
    if x.dtype.kind in "iu":
        if any(int(a) != float(b) for a, b in zip(x.flat, y.flat, strict=True)):  # exact: Python compares both whole
            got = f"integers ({x.dtype.name}) that it does not have"
            raise DtypeMismatchError(path, name, dtype, got, "cast to a wider dtype")
    elif np.any(np.isinf(y) & np.isfinite(x)):
        largest = float(np.max(np.abs(x[np.isfinite(x)].astype(np.float64))))
        got = f"{x.dtype.name} up to {largest:.6g}, beyond its range"
        raise DtypeMismatchError(path, name, dtype, got, "cast to a dtype of wider range")
    return y


def require_finite(path: str, name: str, x: np.ndarray) -> None:
    """Refuse NaN and infinities.

    Raises:
        NonFiniteWeightError: with how many there are and where the first is.
    """
    with np.errstate(invalid="ignore"):  # bfloat16 warns of a signalling NaN
        finite = np.isfinite(x)
    if not np.all(finite):
        first = tuple(map(int, np.argwhere(~finite)[0]))
        got = f"{int(np.sum(~finite))} NaN or infinite, the first at {first}"
        fix = "choose a checkpoint from before that, or pass finite=False to take it as it is"
        raise NonFiniteWeightError(path, name, "finite numbers", got, fix)


def digest(x: np.ndarray) -> str:
    """SHA-256 of an array's bytes, in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data).hexdigest()
