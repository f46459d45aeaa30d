"""What the package offers by name: build and trace."""

from importlib import import_module
from typing import Any

from flax import nnx

from attn_jax._core import Layer, Output, check_dtype_on
from attn_np import contract
from attn_np.weights import draw

__all__ = ["build", "layer_class", "trace"]


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
    values = draw(fields, seed, name)
    layer = layer_class(variant)(fields, rngs=nnx.Rngs(seed), param_dtype=name, _values=values)
    layer.eval()
    return layer


def trace(layer: Layer[Any], *inputs: Any, **options: Any) -> tuple[Output, dict[str, Any]]:
    """Call a layer and return its output and its tape: every named intermediate, in the order they were computed.

    The tape is made inside, so this works under `jit`, `grad` and `vmap`. 16-bit layers compute in float32 and the tape
    holds what was computed, unrounded.
    """
    tape: dict[str, Any] = {}
    return layer(*inputs, tape=tape, **options), tape
