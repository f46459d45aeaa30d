"""What the package offers by name: build, save, load and load_pretrained, trace, value_and_vjp."""

from collections.abc import Callable, Collection
from copy import copy, deepcopy
from importlib import import_module
from os import PathLike
from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np import contract
from attn_np._layer import Layer, Output
from attn_np._vjp import Grads
from attn_np.contract import check_dtype
from attn_np.contract._tape import Residuals
from attn_np.weights import draw, once, read, read_pretrained, require_savable, wanted_dtype, write

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
    require_savable("attn_np", module, Layer, path)
    write(path, module.config, module.params(), layout=layout, layer=layer, part=part, prefix=prefix, finite=finite)


def load(
    path: str | PathLike[str],
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
    wanted = wanted_dtype(into.config if into else None, into.params() if into else {}, dtype)
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
    if into is None:
        cls = layer_class(found.config.variant)
        return cls(found.config, rng=0, dtype=found.dtype or wanted or "float32", _values=found.values).eval()
    into.set_params(found.values)
    return into.eval()


def load_pretrained(
    path: str | PathLike[str],
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
    cls = layer_class(found.config.variant)
    return cls(found.config, rng=0, dtype=found.dtype, _values=once(found.values)).eval()


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
        recompute: compute the forward pass again in each `pull`. It then takes about a quarter longer, and until then
            only inputs and output are in memory instead of every array that the backward pass reads.
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


def bound(layer: Layer[Any], generator: Callable[[Layer[Any]], Any]) -> Any:
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
