"""For the tests of one variant: does an independent computation give what the reference gives, within its bound?

Every `test_<variant>.py` has a function `witness(config, inputs, params)`: the paper's formula one number at a time,
which imports nothing of ours. It gives float64 arrays by the names of the outputs: "y", "out1" and so on.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from flax import nnx

from attn_np.contract import Config
from parity_tests._inputs import Arrays, Tree
from parity_tests.cases import Case, Drawn, draw
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


def each_row(
    config: Any, inputs: Arrays, words: Sequence[np.ndarray], scores: tuple[int, ...]
) -> tuple[Any, list[list[Any]]]:
    """The batch rows of a call as lists of numbers: the words, then mask, bias and keep-mask spread over the scores.

    Without a keep-mask nothing is dropped: the config comes back with a rate of 0.
    """
    defaults = (("mask", True), ("bias", 0.0), ("keep", True))
    spread = [np.broadcast_to(inputs.get(name, other), scores) for name, other in defaults]
    rows = [[x.tolist() for x in row] for row in zip(*words, *spread, strict=True)]
    return (config if "keep" in inputs else replace(config, dropout=0.0)), rows


def stacked(pairs: Sequence[tuple[Any, ...]], *names: str) -> Arrays:
    """What loops found for every batch row, as arrays by name."""
    return {name: np.array(found, np.float64) for name, found in zip(names, zip(*pairs, strict=True), strict=True)}


def disagreement(witness: Callable[..., Arrays], case: Case) -> str:
    """Where the reference leaves its bounds around the witness, in words; empty where it does not."""
    drawn = draw(case)
    want = bounded(case.config, drawn.inputs, drawn.params)
    found = {name: ratio(x, want[name]) for name, x in witness(case.config, drawn.inputs, drawn.params).items()}
    return ", ".join(f"{name}: error/bound {r:.3g}" for name, r in found.items() if not r <= 1)


def layer_of(tree: Tree, config: Config, weights: Arrays | None = None) -> Any:
    """A float64 layer in evaluation mode with these parameters."""
    cls = getattr(import_module(f"{tree.package.__name__}.{config.variant}"), config.layer)
    options = {"rngs": nnx.Rngs(0), "param_dtype": "float64"} if tree.name == "jax" else {"dtype": "float64"}
    layer = cls(config, **options, _values=tree.arrays(weights or {}))
    layer.eval()
    return layer
