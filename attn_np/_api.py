"""What the package offers by name: build, save, load and load_pretrained, trace, value_and_vjp."""

from collections.abc import Callable, Collection
from copy import copy, deepcopy
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np import contract
from attn_np._layer import Layer, Output
from attn_np._vjp import Grads
from attn_np.contract import check_dtype
from attn_np.contract._tape import Residuals
from attn_np.weights import PathArg, drain, draw, read, read_pretrained, requested_dtype, require_savable, write

__all__ = ["build", "layer_class", "load", "load_pretrained", "save", "trace", "value_and_vjp"]


def layer_class(variant: str) -> type[Layer[Any]]:
    """The class of a variant in this tree.

    Raises:
        ValueError: there is no such variant.
    """
    return getattr(import_module(f"attn_np.{variant}"), contract.get(variant).Config.layer)


def build(variant: str, /, *, seed: int = 0, dtype: str = "float32", **config: Any) -> Any:
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
    name = check_dtype(variant, dtype)
    return layer_class(fields.variant)(fields, rng=seed, dtype=name, _values=draw(fields, seed, name)).eval()


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
    """Write a layer's parameters and config to a weight file that loads into all three trees.

    The file is written whole or not at all. A file that it replaces keeps its permissions.

    Args:
        module: the layer.
        path: the file.
        layout: name of a foreign layout to write, such as "bert"; None for our own names.
        layer: number of the layer in the foreign names.
        part: which block of attention, if a layer has several.
        prefix: what to put before the names, such as "blocks.0.attn.".
        finite: refuse NaN and infinities.

    Raises:
        WeightFileError: parameters that are not finite, or a config that the layout cannot represent.
        OSError: a path that cannot be written: a read-only file, a folder, anything but a regular file.
        ValueError: a path that `load` would not read, such as the name of an index of shards.
        TypeError: no layer of this package, or no path.
    """
    require_savable("attn_np", module, Layer, path)
    write(path, module.config, module.params(), layout=layout, layer=layer, part=part, prefix=prefix, finite=finite)


def load(
    path: PathArg,
    *,
    into: Layer[Any] | None = None,
    layout: str | None = None,
    variant: str | None = None,
    layer: int | None = None,
    part: str | None = None,
    prefix: str = "",
    dtype: str | None = None,
    cast: bool = False,
    finite: bool = True,
    **config: Any,
) -> Any:
    """A layer in evaluation mode with the weights of a file: one that `save` wrote, a model's, or a foreign layout's.

    The file is checked whole before anything changes: when it is refused, `into` is as it was.

    A whole model's file, such as `state_dict()` saved by safetensors' own `save_file`, has our names after a prefix and
    no config: `load(path, prefix="blocks.0.attn.", variant="mha", d_model=64, num_heads=4)`, with the fields that
    `build` gets, or `load(path, prefix="blocks.0.attn.", into=layer)`.

    Args:
        path: the file, or the index of its shards (`*.safetensors.index.json`).
        into: a layer that takes the weights in place; a new one by default.
        layout: name of a foreign layout, such as "bert"; or of the file's variant, to have it converted.
        variant: the variant to return, for a layout with several and for a file without our metadata.
        layer: number of the layer, for a layout with several.
        part: which block of attention, if a layer has several, such as "cross".
        prefix: what comes before the layer's keys; other keys are ignored.
        dtype: the dtype to return; `into`'s, else the file's own by default.
        cast: accept a file of another dtype and round it once.
        finite: refuse NaN and infinities.
        config: fields of the Config; those that the file states must agree.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
        ValueError, TypeError: arguments that cannot be right.
    """
    target = requested_dtype(into.config if into else None, into.params() if into else {}, dtype)
    file = read(
        path,
        config=into.config if into else None,
        layout=layout,
        variant=variant,
        layer=layer,
        part=part,
        prefix=prefix,
        dtype=target,
        cast=cast,
        finite=finite,
        **config,
    )
    if into is None:
        cls = layer_class(file.config.variant)
        return cls(file.config, rng=0, dtype=file.dtype or target or "float32", _values=file.values).eval()
    into.set_params(file.values)
    return into.eval()


def load_pretrained(
    path: PathArg,
    /,
    layer: int,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dtype: str | None = None,
    cast: bool = False,
    finite: bool = True,
    report: Callable[[str], object] | None = None,
    **config: Any,
) -> Any:
    """One layer's attention from a model's folder, in evaluation mode, as `config.json` describes it.

    Only the tensors of that layer are read. A model that our layer cannot represent is refused.

    Args:
        path: the folder with `config.json` and the weights, or one weight file or index in it.
        layer: the layer's number, from 0.
        part: which block of attention, if a layer has several, such as "cross".
        layout: the family, for a `config.json` with an unknown `model_type`.
        prefix: what comes before the family's keys, if the model is a part of another.
        allow: fields of `config.json` that are unknown here and leave attention as it is.
        dtype: the dtype to return; the file's own by default.
        cast: accept a file of another dtype and round it once.
        finite: refuse NaN and infinities.
        report: called with a text that names the tensors that were read and those that were ignored, such as `print`.
        config: fields of the Config that such a file does not state: `dropout`, `max_positions`.

    Raises:
        WeightFileError: the subclass that says what is wrong with the folder, or cannot be represented.
        OSError: a folder or file that does not exist.
        ValueError, TypeError: arguments that cannot be right.
    """
    pretrained = read_pretrained(
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
        report(pretrained.report())
    cls = layer_class(pretrained.config.variant)
    return cls(pretrained.config, rng=0, dtype=pretrained.dtype, _values=drain(pretrained.values)).eval()


def trace(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer and return its output and its tape: every named intermediate, in the order they were computed.

    16-bit layers compute in float32 and the tape holds what was computed, unrounded.
    """
    tape: dict[str, Any] = Residuals() if options.get("implementation") == "fused" else {}
    return layer(*inputs, tape=tape, **options), tape  # type: ignore[operator]


def value_and_vjp(
    layer: Layer[Any], *inputs: Any, recompute: bool = False, **options: Any
) -> tuple[Output, Callable[..., Grads]]:
    """The output, and a function `pull` from its gradient to the gradients of inputs and parameters.

    `pull` takes the gradient of y, and of a recurrent layer's returned state as a second one, as often as it is called
    and from any thread. It uses the parameters and the dropout of this call, whatever happens to the layer afterwards;
    inputs and parameters themselves are not copied, so they must not be written to before.

    Args:
        layer: the layer.
        inputs, options: what the layer is called with.
        recompute: compute the forward pass again in each `pull`, a third more time in all. Until then only inputs and
            output are kept in memory, and not every array that the backward pass reads.
    """
    if not recompute:
        called, tape = bound(layer, lambda part: part.rng), Residuals()
        y = called(*inputs, tape=tape, **options)
        return y, lambda *cotangents: called.vjp(copy(tape), *cotangents)

    called = bound(layer, lambda part: ReplayedGenerator(part.rng))
    y = called(*inputs, **options)

    def pull(*cotangents: np.ndarray) -> Grads:
        tape, again = Residuals(), bound(called, lambda part: part.rng.replay())
        again(*inputs, tape=tape, **options)
        return again.vjp(tape, *cotangents)

    return y, pull


def bound(layer: Layer[Any], generator: Callable[[Any], Any]) -> Any:
    """A layer bound to the same parameter arrays, whatever is set in the first one later, with other generators."""
    twin = copy(layer)
    twin.rng = generator(layer)
    for name in layer.config.children():
        parts = getattr(layer, name)
        twins = [bound(part, generator) for part in parts] if isinstance(parts, list) else bound(parts, generator)
        setattr(twin, name, twins)
    return twin


class ReplayedGenerator:
    """Draws from a generator, and can draw the same again, even if other threads draw from it in between."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.source, self.states = generator.bit_generator, list[Any]()

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        with self.source.lock:  # under which all threads draw
            bits = deepcopy(self.source)
            self.states.append(bits.state)
            numbers = np.random.Generator(bits).random(shape)
            self.source.state = bits.state
        return numbers

    def replay(self) -> Any:
        """What draws the same arrays once more."""
        states, bits = iter(self.states), deepcopy(self.source)

        def random(shape: tuple[int, ...]) -> np.ndarray:
            bits.state = next(states)
            return np.random.Generator(bits).random(shape)

        return SimpleNamespace(random=random)
