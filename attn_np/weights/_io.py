"""The way in and out: a layer's weights from a file and into one, in our own names or in a foreign layout."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights._check import LayerWeights, Request, check, check_prefix, refuse_other_arguments
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
) -> LayerWeights:
    """The weights of one layer, from a file that is checked whole before anything is returned.

    The arguments are those of `attn_np.load`, but for `config`: the config that the file must have, as for loading into
    a layer.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
        ValueError, TypeError: arguments that cannot be right.
    """
    check_prefix(prefix)
    refuse_other_arguments("load", fields)
    if variant is not None:
        contract.get(variant)
    if variant in contract.presets():
        variant, preset = contract.presets()[variant]
        fields = {**preset.fields, **fields}
    if config is not None and variant not in (None, config.variant):
        raise ValueError(f"weights: expected variant {config.variant!r} for this layer, got {variant!r}; leave it out")
    foreign_layout = layout if layout not in (None, *contract.variants()) else None
    if foreign_layout is None:
        require_no_layer(layer, part, "name the file's layout, or pass prefix= for our own names in a model's file")
    else:
        layouts.get(foreign_layout)
    request = Request(config, config.variant if config else variant, fields, dtype, cast, finite)
    with open_tensors(path) as file:
        if foreign_layout is not None:
            return read_foreign(file, foreign_layout, layer, part, prefix, request)
        file_variant = variant if layout is None else layout  # layout= may name the variant of the file
        return read_native(file, file_variant, prefix, request)


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
    """Write parameters, by their dotted names, to a file, whole or not at all; the options are those of `attn_np.save`.

    Raises:
        WeightFileError: parameters that do not fit the config, or a config that the layout cannot represent.
        OSError, ValueError: a path that cannot be written.
        TypeError: no path, or a prefix that is not a string.
    """
    path = path_text(path)
    check_prefix(prefix)
    check(config, values, path, finite=finite)
    if layout is not None:
        write_foreign(path, config, values, layout, layer, part, prefix)
        return
    require_no_layer(layer, part, "name the layout to write, or pass prefix= for our own names")
    write_native(path, config, values, prefix)


def require_no_layer(layer: int | None, part: str | None, fix: str) -> None:
    """Refuse the number of a layer or the name of a part without a foreign layout.

    Raises:
        ValueError: naming it.
    """
    if layer is not None or part is not None:
        got = f"layer={layer}" if layer is not None else f"part={part!r}"
        raise ValueError(f"weights: expected a foreign layout= with layer= or part=, got {got} alone; {fix}")
