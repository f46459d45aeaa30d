"""What the package offers by name: build, save, load and load_pretrained, trace."""

from collections.abc import Callable, Collection
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from flax import nnx

from attn_jax._layer import Layer, Output, check_dtype_on
from attn_np import contract
from attn_np.contract import check_dtype
from attn_np.weights import drain, draw, read, read_pretrained, requested_dtype, require_savable, write

__all__ = ["build", "layer_class", "load", "load_pretrained", "save", "trace"]


def layer_class(variant: str) -> type[Layer[Any]]:
    """The class of a variant in this tree.

    Raises:
        ValueError: there is no such variant.
    """
    return getattr(import_module(f"attn_jax.{variant}"), contract.get(variant).Config.layer)


def build(variant: str, /, *, seed: int = 0, dtype: Any = "float32", **config: Any) -> Any:
    """A layer in evaluation mode, with weights that are the same bits in every tree.

    Args:
        variant: the variant's name, such as "mha".
        seed: integer from 0; draws every parameter.
        dtype: float64, float32, bfloat16 or float16.
        config: the fields of the variant's Config.

    Raises:
        ValueError: an unknown variant, or a value that cannot be right.
        TypeError: an unknown or missing field.
    """
    fields = contract.config(variant, **config)
    name = check_dtype_on(variant, dtype)
    values: dict[str, Any] = draw(fields, seed, name)
    layer = layer_class(fields.variant)(fields, rngs=nnx.Rngs(seed), param_dtype=name, _values=values)
    layer.eval()
    return layer


def save(
    module: Layer[Any],
    path: str | PathLike[str],
    /,
    *,
    layout: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    finite: bool = True,
) -> None:
    """Write a layer's parameters and config to a weight file that loads into all three trees.

    The file is written whole or not at all.

    Args:
        module: the layer.
        path: the file.
        layout: name of a foreign layout to write, such as "bert"; None for a file of ours.
        layer: number of the layer in the foreign names.
        part: which block of attention, where a layer has several.
        prefix: what to put before the foreign names.
        finite: refuse NaN and infinities.

    Raises:
        WeightFileError: parameters that are not finite, or a config that the layout cannot hold.
        TypeError: no layer of this package, or no path.
    """
    require_savable("attn_jax", module, Layer, path)
    write(
        path,
        module.config,
        {key: np.asarray(x) for key, x in module.params().items()},
        layout=layout,
        layer=layer,
        part=part,
        prefix=prefix,
        finite=finite,
    )


def load(
    path: str | PathLike[str],
    *,
    into: Layer[Any] | None = None,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    dtype: Any = None,
    cast: bool = False,
    finite: bool = True,
    **config: Any,
) -> Any:
    """A layer in evaluation mode with the weights of a file: one of ours, or one in a foreign layout.

    The file is checked whole before anything changes: when it is refused, `into` is as it was.

    Args:
        path: the file, or the index of its shards (`*.safetensors.index.json`).
        into: a layer that takes the weights in place; a new one by default.
        layout: name of a foreign layout, such as "bert"; or of the variant that the file holds, to have it converted.
        variant: the variant wanted, where the layout has several.
        layer: number of the layer, where the layout has several.
        part: which block of attention, where a layer has several, such as "cross".
        prefix: what stands before the layout's keys; keys without it are left alone.
        dtype: the dtype wanted; the file's own by default, `into`'s where that is given.
        cast: take a file of another dtype too and round it once to the one wanted.
        finite: refuse NaN and infinities.
        config: fields of the Config that the file does not state; where it does they must agree.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        ValueError, TypeError: arguments that cannot be right.
    """
    wanted = requested_dtype(into.config if into else None, into.params() if into else {}, dtype)
    found = read(
        path,
        config=into.config if into else None,
        layout=layout,
        variant=variant,
        layer=layer,
        part=part,
        prefix=prefix,
        dtype=wanted,
        cast=cast,
        finite=finite,
        **config,
    )
    values: dict[str, Any] = found.values
    if into is None:
        name = check_dtype_on(found.config.variant, found.dtype or wanted or "float32")
        cls = layer_class(found.config.variant)
        into = cls(found.config, rngs=nnx.Rngs(0), param_dtype=name, _values=values)
    else:
        check_dtype_on(into.config.variant, found.dtype or "float32")
        into.set_params(values)
    into.eval()
    return into


def load_pretrained(
    path: str | PathLike[str],
    /,
    layer: int,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dtype: Any = None,
    cast: bool = False,
    finite: bool = True,
    report: Callable[[str], object] | None = None,
    **config: Any,
) -> Any:
    """One layer's attention out of a model's folder, in evaluation mode: `config.json` says what it is.

    Only the tensors of that layer are read. What the layer cannot represent is refused.

    Args:
        path: the folder with `config.json` and the weights, or one weight file or index in it.
        layer: the layer's number, from 0.
        part: which block of attention, where a layer has several, such as "cross".
        layout: the family, for a `config.json` that calls it by a name that nobody knows.
        prefix: what stands before the family's keys, where the model is a part of another.
        allow: fields of `config.json` that are unknown here and leave attention as it is.
        dtype: the dtype wanted; the file's own by default.
        cast: take a file of another dtype too and round it once to the one wanted.
        finite: refuse NaN and infinities.
        report: gets a text with the tensors that were read and those of the layer that were left out, such as `print`.
        config: fields of the Config that no such file states: `dropout`, `max_positions`.

    Raises:
        WeightFileError: the subclass that says what is wrong with the folder, or what cannot be represented.
        ValueError, TypeError: arguments that cannot be right.
    """
    found = read_pretrained(
        path,
        layer,
        part=part,
        layout=layout,
        prefix=prefix,
        allow=allow,
        dtype=None if dtype is None else check_dtype("load_pretrained", dtype),
        cast=cast,
        finite=finite,
        **config,
    )
    if report is not None:
        report(found.report())
    name = check_dtype_on(found.config.variant, found.dtype)
    values = drain(found.values)
    made = layer_class(found.config.variant)(found.config, rngs=nnx.Rngs(0), param_dtype=name, _values=values)
    made.eval()
    return made


def trace(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer and return its output and its tape: every named intermediate, in the order they were computed.

    The tape is made inside, so this works under `jit`, `grad` and `vmap`. 16-bit layers compute in float32 and the tape
    holds what was computed, unrounded.
    """
    tape: dict[str, Any] = {}
    return layer(*inputs, tape=tape, **options), tape
