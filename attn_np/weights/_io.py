"""The way in and out: a layer's weights from a file and into one, in our own names or in a foreign layout."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.contract._rotary import LAYOUTS as ROTARY_LAYOUTS
from attn_np.weights import layouts
from attn_np.weights._check import Request, WeightFile, check
from attn_np.weights._foreign import read_foreign, write_foreign
from attn_np.weights._native import read_native, write_native
from attn_np.weights._paths import PathArg, path_text
from attn_np.weights._shards import open_tensors


def read(
    path: PathArg,
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
    """The weights of one layer, from a file that is checked whole before anything is returned.

    Args:
        path: the file, or the index of its shards (`*.safetensors.index.json`).
        config: the config that the file must have, as for loading into a layer.
        layout: name of a foreign layout, or of the file's variant if another one is to be returned; None for our own
            names as they are. "half" or "interleaved" is the Config field of this name.
        variant: the variant to return, for a layout with several and for a file without our metadata.
        layer: number of the layer, for a layout with several.
        part: which block of attention, if a layer has several, such as "cross".
        prefix: what comes before the layer's keys, such as "blocks.0.attn."; other keys are ignored.
        dtype: the dtype to return; the file's own by default.
        cast: accept another dtype in the file, rounded once; numbers beyond the range are refused all the same.
        finite: refuse NaN and infinities.
        fields: fields of the config; those that the file states must agree.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
        ValueError, TypeError: arguments that cannot be right.
    """
    if variant is not None:
        contract.get(variant)
    if variant in contract.presets():
        variant, preset = contract.presets()[variant]
        fields = {**preset.fields, **fields}
    if layout in ROTARY_LAYOUTS:  # no layout of files, but the Config field of the same name
        layout, fields = None, {**fields, "layout": layout}
    if config is not None and variant not in (None, config.variant):
        raise ValueError(f"weights: expected variant {config.variant!r} for this layer, got {variant!r}; leave it out")
    foreign = layout if layout not in (None, *contract.variants()) else None
    if foreign is None:
        require_no_layer(layer, part, "name the file's layout, or pass prefix= for our own names in a model's file")
    else:
        layouts.get(foreign)
    request = Request(config, config.variant if config else variant, fields, dtype, cast, finite)
    with open_tensors(path) as file:
        if foreign is not None:
            return read_foreign(file, foreign, layer, part, prefix, request)
        return read_native(file, layout or variant, prefix, request)


def write(
    path: PathArg,
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
        config: the config of the parameters.
        values: every parameter by its dotted name.
        layout: name of a foreign layout; None for our own names.
        layer: number of the layer in the foreign names, 0 by default.
        part: which block of attention, if a layer has several.
        prefix: what to put before the names.
        finite: refuse NaN and infinities.

    Raises:
        WeightFileError: parameters that do not fit the config, or a config that the layout cannot represent.
        OSError, ValueError: a path that cannot be written.
    """
    file = path_text(path)
    check(config, values, file, finite=finite)
    if layout is not None:
        write_foreign(file, config, values, layout, layer, part, prefix)
        return
    require_no_layer(layer, part, "name the layout to write, or pass prefix= for our own names")
    write_native(file, config, values, prefix)


def require_no_layer(layer: int | None, part: str | None, todo: str) -> None:
    """Refuse the number of a layer or a block without a foreign layout.

    Raises:
        ValueError: naming it.
    """
    if layer is not None or part is not None:
        got = f"layer={layer}" if layer is not None else f"part={part!r}"
        raise ValueError(f"weights: expected a foreign layout= with layer= or part=, got {got} alone; {todo}")
