"""The three trees behind one face, for tests that ask the same question of each: arrays in, arrays out."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from flax import nnx

import attn_jax
import attn_np
import attn_torch
from attn_np import contract
from attn_np.attention import attend as attend_np
from attn_np.contract import Config
from parity_tests.judge.cases import TRUE, Case, call_sizes, draw, given, tokens_below

Arrays = dict[str, np.ndarray]


def flat(y: Any) -> list[Any]:
    """The arrays of an output, in order: of y alone, or of nested tuples, lists and dictionaries."""
    if y is None:
        return []
    if isinstance(y, dict):
        return [x for part in y.values() for x in flat(part)]
    return [x for part in y for x in flat(part)] if isinstance(y, tuple | list) else [y]


class Tree:
    """One of the three packages. Layers are in float64 and evaluation mode unless another is asked for."""

    name: str
    package: Any
    array_type: str

    def array(self, x: np.ndarray) -> Any:
        """The tree's own array with the same bits."""
        raise NotImplementedError

    def numpy(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def build(self, config: Config, *, seed: int = 0, dtype: str = "float64") -> Any:
        fields = {name: getattr(config, name) for name in config.fields()}
        return self.package.build(config.variant, seed=seed, dtype=dtype, **fields)

    @cache  # noqa: B019 - three trees that live as long as the process
    def layer(self, variant: str, example: str, dtype: str = "float64") -> Any:
        """The layer of an example, made once; not to be changed."""
        return self.build(contract.examples(variant)[example], dtype=dtype)

    def training(self, layer: Any) -> Any:
        """Put a layer into training mode."""
        layer.train()
        return layer

    def is_training(self, layer: Any) -> bool:
        return layer.training

    def arrays(self, inputs: Arrays) -> dict[str, Any]:
        return {name: self.array(x) for name, x in inputs.items()}

    def __call__(self, layer: Any, inputs: Arrays, **options: Any) -> list[np.ndarray]:
        """Every array of the output."""
        return [self.numpy(x) for x in flat(layer(**self.arrays(inputs), **options))]

    def trace(self, layer: Any, inputs: Arrays, **options: Any) -> tuple[list[np.ndarray], Arrays]:
        """Every array of the output, and the tape."""
        y, tape = self.package.trace(layer, **self.arrays(inputs), **options)
        return [self.numpy(x) for x in flat(y)], {name: self.numpy(x) for name, x in tape.items()}

    def attend(self, inputs: Arrays) -> list[np.ndarray]:
        """`attend` on q, k, v and what else is given: context, weights and the gradients of q, k, v."""
        raise NotImplementedError

    def gradients(self, layer: Any, inputs: Arrays, dy: np.ndarray) -> Arrays:
        """Gradient of the first output against every float input, `dquery`, and every parameter, `dw_q`."""
        raise NotImplementedError


class NumPyTree(Tree):
    name, package, array_type = "numpy", attn_np, "NumPy array"

    def array(self, x: np.ndarray) -> Any:
        return x

    def numpy(self, x: Any) -> np.ndarray:
        return x

    def attend(self, inputs: Arrays) -> list[np.ndarray]:
        tape: Arrays = {}
        given: dict[str, Any] = dict(inputs)
        found: Any = attend_np.attend(**given, tape=tape, return_weights=True)
        context, weights = found
        return [context, weights, *attend_np.attend_vjp(tape, np.cos(context))[:3]]

    def gradients(self, layer: Any, inputs: Arrays, dy: np.ndarray) -> Arrays:
        options: dict[str, Any] = dict(inputs)
        _, pull = attn_np.value_and_vjp(layer, **options)
        grads = pull(dy)
        return {f"d{name}": g for name, g in (grads.inputs | grads.params).items()}


class TorchTree(Tree):
    name, package, array_type = "torch", attn_torch, "torch.Tensor"

    def array(self, x: np.ndarray) -> Any:
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)
        return torch.from_numpy(x.copy())

    def attend(self, inputs: Arrays) -> list[np.ndarray]:
        given = self.arrays(inputs)
        leaves = [given[name].requires_grad_() for name in "qkv"]
        context, weights = attn_torch.attend(**given, return_weights=True)
        grads = torch.autograd.grad(context, leaves, torch.cos(context.detach()))
        return [self.numpy(x) for x in (context, weights, *grads)]

    def numpy(self, x: Any) -> np.ndarray:
        x = x.detach()
        return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()

    def gradients(self, layer: Any, inputs: Arrays, dy: np.ndarray) -> Arrays:
        given = self.arrays(inputs)
        leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
        leaves |= dict(layer.named_parameters())
        y = flat(layer(**given))[0]
        found = torch.autograd.grad(y, list(leaves.values()), self.array(dy), allow_unused=True)
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), found, strict=True)]
        return {f"d{name}": self.numpy(g) for name, g in zip(leaves, grads, strict=True)}


class SharingTree(TorchTree):
    """PyTorch's, whose arrays are NumPy's, with their strides: what is written into one is written into the other."""

    def array(self, x: np.ndarray) -> Any:
        return torch.from_numpy(x)


class JaxTree(Tree):
    name, package, array_type = "jax", attn_jax, "jax.Array"

    def array(self, x: np.ndarray) -> Any:
        return jnp.asarray(x)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def __call__(self, layer: Any, inputs: Arrays, **options: Any) -> list[np.ndarray]:
        return [self.numpy(x) for x in self.compiled("call", **options)(layer, self.arrays(inputs))]

    def trace(self, layer: Any, inputs: Arrays, **options: Any) -> tuple[list[np.ndarray], Arrays]:
        y, tape = self.compiled("trace", **options)(layer, self.arrays(inputs))
        return [self.numpy(x) for x in y], {name: self.numpy(x) for name, x in tape.items()}

    @cache  # noqa: B019 - eager, a scan would be compiled again in every call
    def compiled(self, what: str, **options: Any) -> Callable[..., Any]:
        def call(layer: Any, given: dict[str, Any]) -> Any:
            if what == "call":
                return flat(layer(**given, **options))
            y, tape = attn_jax.trace(layer, **given, **options)
            return flat(y), tape

        return nnx.jit(call)

    def is_training(self, layer: Any) -> bool:
        return not layer.deterministic

    def attend(self, inputs: Arrays) -> list[np.ndarray]:
        given = self.arrays(inputs)
        qkv, rest = [given.pop(name) for name in "qkv"], given
        found: Any = jax.vjp(lambda q, k, v: attn_jax.attend(q, k, v, **rest, return_weights=True), *qkv)
        (context, weights), pull = found
        return [self.numpy(x) for x in (context, weights, *pull((jnp.cos(context), jnp.zeros_like(weights))))]

    def gradients(self, layer: Any, inputs: Arrays, dy: np.ndarray) -> Arrays:
        given = self.arrays(inputs)
        floats = {name: x for name, x in given.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        others = {name: x for name, x in given.items() if name not in floats}
        found, params = self.pull(layer)(floats, others, nnx.state(layer, nnx.Param), self.array(dy))
        grads = found | {".".join(map(str, path)): g[...] for path, g in nnx.to_flat_state(params)}
        return {f"d{name}": self.numpy(g) for name, g in grads.items()}

    @cache  # noqa: B019 - compiled once per layer
    def pull(self, layer: Any) -> Callable[..., Any]:
        graph, _, rest = nnx.split(layer, nnx.Param, ...)

        def run(floats: Any, others: Any, params: Any, dy: Any) -> Any:
            def forward(floats: Any, params: Any) -> Any:
                return flat(nnx.merge(graph, params, rest)(**floats, **others))[0]

            return jax.vjp(forward, floats, params)[1](dy)

        return jax.jit(run)


TREES: dict[str, Tree] = {tree.name: tree for tree in (NumPyTree(), JaxTree(), TorchTree())}
SHARING: dict[str, Tree] = {"torch": SharingTree()}
EXAMPLES = [(variant, example) for variant in contract.variants() for example in contract.examples(variant)]


def normal(*shape: int) -> np.ndarray:
    """Normal numbers, other ones for another size."""
    return np.random.default_rng(sum(shape)).normal(size=shape)


def config_of(variant: str, example: str) -> Config:
    return contract.examples(variant)[example]


def inputs_for(variant: str, example: str, call: str = "plain", dtype: str = "float64") -> Arrays:
    """Random inputs of a call: "plain" gives what must be given, "full" every argument."""
    return draw(Case(variant, example, call, dtype)).inputs


def shapes_for(config: Config, call: str | Collection[str], **sizes: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the arguments that a call gives, or of those that are named, with some axes of another size."""
    arguments, known = config.arguments(), call_sizes(config) | sizes | config.sizes()
    names = given(config, call) if isinstance(call, str) else tuple(name for name in arguments if name in call)
    for name, arg in arguments.items():
        if name not in names and arg.falls_back_to is not None:
            source = arguments[arg.falls_back_to].axes.split()
            known |= {mine: known[its] for mine, its in zip(arg.axes.split(), source, strict=True) if mine != its}
    return {name: tuple(known[x] for x in arguments[name].axes.split()) for name in names}


def without(config: Config, **fields: Any) -> Config:
    """The same config with some fields changed, where it has them."""
    return replace(config, **{name: value for name, value in fields.items() if name in config.fields()})


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape, dtype and every number; NaN equals NaN, and 0 equals -0."""
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def first_difference(a: Arrays, b: Arrays) -> str | None:
    """The first name under which two dictionaries differ, in words; None where they are the same."""
    if list(a) != list(b):
        return f"names {sorted(set(a) ^ set(b)) or 'in another order'}"
    for name in a:
        if not same(a[name], b[name]):
            return f"{name}:\n{a[name]}\n{b[name]}"
    return None


def random_inputs(config: Config, call: str | Collection[str], **sizes: int) -> Arrays:
    """Random float64 inputs with some axes of another size; nothing is masked or dropped on purpose."""
    rng = np.random.default_rng(3)
    inputs: Arrays = {}
    for name, shape in shapes_for(config, call, **sizes).items():
        kind = config.arguments()[name].kind
        if kind in ("array", "bias"):
            inputs[name] = rng.normal(size=shape)
        elif kind == "integers":
            inputs[name] = rng.integers(0, tokens_below(config, name), size=shape)
        else:
            inputs[name] = rng.random(shape) < TRUE[kind]
    return inputs


def axis(config: Config, argument: str, letter: str) -> int | None:
    """Where an argument has an axis letter; the first of two."""
    letters = config.arguments()[argument].axes.split()
    return letters.index(letter) if letter in letters else None


def at(x: np.ndarray, where: dict[int | None, Any]) -> tuple[Any, ...]:
    """An index that fixes some axes."""
    return tuple(where.get(i, slice(None)) for i in range(x.ndim))
