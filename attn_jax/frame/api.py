"""What the package offers by name: make a layer, save and load it, and see every intermediate of a call."""

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

from attn_jax.frame.build import build as build
from attn_jax.frame.build import layer_class as layer_class
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Device, DType, check_device, float_dtype_name, from_numpy, to_numpy
from attn_np.contract import Config
from attn_np.contract._explain import explain as explain
from attn_np.contract._projections import Projections, require_no_projections
from attn_np.weights import (
    PathArg,
    Pretrained,
    pop_on_read,
    read,
    read_pretrained,
    read_pretrained_layers,
    requested_dtype,
    require_config,
    require_layer_of,
    write,
)

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in


def save(
    module: Layer[Any],
    path: PathArg,
    /,
    *,
    layout: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    finite: bool = True,
) -> None:
    """Write a layer's parameters and config to a weight file that loads into all three packages.

    The file is written whole or not at all. A file that it replaces keeps its permissions.

    Args:
        module: the layer.
        path: the file.
        layout: name of a foreign layout to write, such as "bert"; None for our own names.
        layer: the layer's number in the foreign names, 0 by default.
        part: which block of attention, such as "cross", or which stage of a model, if there are several.
        prefix: what to put before the names, such as "blocks.0.attn.".
        finite: refuse NaN and infinities.

    Raises:
        WeightFileError: parameters that are not finite, or a config that the layout cannot represent.
        OSError: a path that cannot be written: a read-only file, a folder, anything but a regular file.
        ValueError: a path that `load` would not read, such as the name of an index of shards.
        TypeError: no layer of this package, no path, or a prefix that is not a string.
    """
    expected = f"{TREE}.save: expected a layer of {TREE} first"
    require_layer_of(Layer, module, expected, "call save(layer, path)")
    values = {key: to_numpy(x) for key, x in module.params().items()}
    write(path, module.config, values, layout=layout, layer=layer, part=part, prefix=prefix, finite=finite)


def load(
    path: PathArg,
    *,
    into: Layer[Any] | None = None,
    config: Config | None = None,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    dtype: DType | None = None,
    cast: bool = False,
    finite: bool = True,
    device: Device = None,
    projections: Projections = "arrays",
    **fields: Any,
) -> Any:
    """A layer in evaluation mode with the weights of a file: one that `save` wrote, a model's, or a foreign layout's.

    The file is checked whole before anything changes: when it is refused, `into` is as it was.

    A whole model's file, such as `state_dict()` saved by safetensors' own `save_file`, has our names after a prefix and
    no config: `load(path, prefix="blocks.0.attn.", variant="mha", d_model=64, num_heads=4)`, with the fields that
    `build` gets, or `load(path, prefix="blocks.0.attn.", into=layer)`.

    Args:
        path: the file, or the index of its shards (`*.safetensors.index.json`).
        into: a layer that takes the weights in place; a new one by default.
        config: the Config that the file must have, instead of its fields.
        layout: the file's foreign layout, such as "bert". To convert a file in our own names, pass the
            variant that it holds as `layout`, and the one to return as `variant`.
        variant: the variant to return, for a layout with several and for a file without our metadata.
        layer: the layer's number in the foreign names, for a layout with several.
        part: which block of attention, such as "cross", or which stage of a model, if there are several.
        prefix: what comes before the layer's keys; other keys are ignored.
        dtype: the dtype to return; `into`'s, else the file's own by default.
        cast: accept a file of another dtype and round it once.
        finite: refuse NaN and infinities.
        device: where the parameters of a new layer live.
        projections: of a new layer, as in `build`.
        fields: those of the Config; those that the file states must agree.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
        ValueError, TypeError: arguments that cannot be right.
    """
    if into is not None:
        expected = f"{TREE}.load: expected into= to be a layer of {TREE}"
        require_layer_of(Layer, into, expected, "call load(path, into=layer)")
    if into is not None and device is not None:
        raise ValueError(f"{into.config.variant}: expected no device= with into=, got {device!r}; move the layer")
    if into is not None:
        require_no_projections(into.config, projections)
    device = check_device(device)
    layer_config = require_config(into.config if into else None, config, fields)
    target_dtype = requested_dtype(layer_config, into.params() if into else {}, dtype)
    selection: dict[str, Any] = {"layout": layout, "variant": variant, "layer": layer, "part": part, "prefix": prefix}
    weight_file = read(path, config=layer_config, dtype=target_dtype, cast=cast, finite=finite, **selection, **fields)
    dtype = float_dtype_name(weight_file.config.variant, weight_file.dtype or target_dtype or "float32")
    values = pop_on_read(weight_file.values, lambda x: from_numpy(x, device))
    if into is None:
        return layer_class(weight_file.config.variant).from_params(
            weight_file.config, values, dtype, projections=projections
        )
    into.set_params(values)
    into.eval()
    return into


def load_pretrained(
    path: PathArg,
    /,
    layer: int | None = None,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dequantize: bool = False,
    dtype: DType | None = None,
    cast: bool = False,
    finite: bool = True,
    device: Device = None,
    projections: Projections = "arrays",
    report: Callable[[str], object] | None = None,
    **fields: Any,
) -> Any:
    """One layer's attention from a model's folder, in evaluation mode, as `config.json` describes it; or all layers'.

    Without `layer` the result is a list with an entry for each layer of the model, None for a layer of a hybrid that
    does not attend. The files are read once, and beyond the result there is memory for one layer.

    Only the tensors that the layer uses are read; in T5 and DeBERTa these include a table that all layers share. A
    model that our layer cannot represent is refused.

    Args:
        path: the folder with `config.json` and the weights, or one weight file or index in it.
        layer: the layer's number in the foreign names, from 0; None for all.
        part: which block of attention, such as "cross", or which stage of a model, if there are several.
        layout: the family, for a `config.json` with an unknown `model_type`.
        prefix: what comes before the family's keys, if the model is a part of another.
        allow: fields of `config.json` that are unknown here and leave attention as it is.
        dequantize: of weights that are stored in 8 bits, return the numbers that they stand for: each stored number
            times the scale of its block, rounded once, to float32 or `dtype`.
        dtype: the dtype to return; the file's own by default.
        cast: accept a file of another dtype and round it once.
        finite: refuse NaN and infinities.
        device: where the parameters live.
        projections: as in `build`.
        report: called with a text that names the tensors that were read and those that were ignored, such as `print`.
        fields: those of the Config that the model does not state, such as `dropout`, `max_positions` or `causal`.

    Raises:
        WeightFileError: the subclass for what is wrong with the folder, or for a field that our layer cannot represent.
        OSError: a folder or file that does not exist.
        ValueError, TypeError: arguments that cannot be right.
    """
    target_dtype, device = None if dtype is None else float_dtype_name("load_pretrained", dtype), check_device(device)
    options: dict[str, Any] = {"layout": layout, "part": part, "prefix": prefix, "allow": allow, **fields}
    options |= {"dequantize": dequantize, "dtype": target_dtype, "cast": cast, "finite": finite}

    def built(pretrained: Pretrained) -> Any:
        if report is not None:
            report(pretrained.report())
        config, dtype = pretrained.config, float_dtype_name(pretrained.config.variant, pretrained.dtype)
        values = pop_on_read(pretrained.values, lambda x: from_numpy(x, device))
        return layer_class(config.variant).from_params(config, values, dtype, projections=projections)

    if layer is not None:
        return built(read_pretrained(path, layer, **options))
    return [None if pretrained is None else built(pretrained) for pretrained in read_pretrained_layers(path, **options)]


def trace(layer: Any, *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer, or a function with a tape, and return its output and its tape: every named intermediate, in order.

    With `implementation="fused"` the tape lacks what the fast path never forms, such as scores and weights.
    The tape is made inside, so this can be compiled and transformed. 16-bit layers compute in float32 and the tape
    holds what was computed, unrounded.

    Raises:
        TypeError: a function without a tape, such as `softmax`.
    """
    tape: dict[str, Any] = {}
    try:
        return layer(*inputs, tape=tape, **options), tape
    except TypeError:
        # Not asked before the call: under torch.compile with dynamic=True, defaults that are read become symbols.
        if hasattr(layer, "config") or not callable(layer) or "tape" in signature(layer).parameters:
            raise
    name = getattr(layer, "__name__", repr(layer))
    raise TypeError(f"trace: expected a layer or a function with a tape, got {name}; it records nothing: call it")
