"""What the package offers by name: build, trace, value_and_vjp."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from attn_np import contract
from attn_np._core import Layer, Output
from attn_np._vjp import Grads
from attn_np.contract import check_dtype
from attn_np.weights import draw

__all__ = ["build", "layer_class", "trace", "value_and_vjp"]


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
    return layer_class(variant)(fields, rng=seed, dtype=name, _values=draw(fields, seed, name)).eval()


def trace(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer and return its output and its tape: every named intermediate, in the order they were computed.

    16-bit layers compute in float32 and the tape holds what was computed, unrounded.
    """
    tape: dict[str, Any] = {}
    return layer(*inputs, tape=tape, **options), tape  # type: ignore[operator]


def value_and_vjp(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, Callable[[np.ndarray], Grads]]:
    """The output, and a function from its gradient to the gradients of inputs and parameters.

    Keeps the inputs only; `pull` computes the forward again with a tape, with the same dropout, and reads it upwards.
    """
    before = layer.rng.bit_generator.state
    y = layer(*inputs, **options)  # type: ignore[operator]

    def pull(dy: np.ndarray) -> Grads:
        after, layer.rng.bit_generator.state = layer.rng.bit_generator.state, before
        try:
            _, tape = trace(layer, *inputs, **options)
        finally:
            layer.rng.bit_generator.state = after
        return layer.vjp(tape, dy)  # type: ignore[attr-defined]

    return y, pull
