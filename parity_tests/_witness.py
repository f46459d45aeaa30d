"""For the tests of one variant: does an independent computation give what the reference gives, within its bound?"""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from flax import nnx

from attn_np.contract import Config
from parity_tests._inputs import Arrays, Tree
from parity_tests.cases import Case, Drawn
from parity_tests.error_arrays import ErrArray, precision_of
from parity_tests.judge import compare, reference


def weights_of(config: Config, seed: int = 0) -> Arrays:
    """Random float64 parameters, none of them near 0 on the whole, so that leaving one out shows."""
    rng = np.random.default_rng(seed)
    fans = config.fans()
    return {name: rng.normal(size=shape) * 1.5 * fans[name] ** -0.5 for name, shape in config.shapes().items()}


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of y that `bounded` uses."""
    return Drawn({}, {}, 0).cotangent(shape, "float64")


def bounded(
    config: Config, inputs: Arrays, weights: Arrays | None = None, dtype: str = "float64"
) -> dict[str, ErrArray]:
    """What the reference gives, each number with the bound for a computation in `dtype`.

    Under "y", "out1" (the weights, where a layer returns them) and, for the gradients, "d" + name.
    """
    case = Case(config.variant, "", "", dtype, given=config)
    found, grads = reference(case, Drawn(inputs, weights or {}, 0), {}, precision_of(dtype))
    return found | grads


def torch_gradients(y: torch.Tensor, **leaves: torch.Tensor) -> Arrays:
    """By PyTorch's autograd, with the cotangent of `bounded`, under "d" + name."""
    grads = torch.autograd.grad(y, list(leaves.values()), torch.from_numpy(cotangent(tuple(y.shape))))
    return {f"d{name}": grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


def ratio(got: Any, want: ErrArray) -> float:
    """Largest error/bound; infinite where shapes differ or where there is no finite bound to hold anyone to."""
    return compare(np.asarray(got, np.float64), want)["ratio"] if np.isfinite(want.b).all() else float("inf")


def layer_of(tree: Tree, config: Config, weights: Arrays | None = None) -> Any:
    """A float64 layer in evaluation mode with these parameters."""
    cls = getattr(import_module(f"{tree.package.__name__}.{config.variant}"), config.layer)
    options = {"rngs": nnx.Rngs(0), "param_dtype": "float64"} if tree.name == "jax" else {"dtype": "float64"}
    layer = cls(config, **options, _values=tree.arrays(weights or {}))
    layer.eval()
    return layer
