"""What Flax's layers are put through besides being called, for every variant.

A variant goes through a transform or stands in `EXEMPT` with the reason. What a variant has to compile for these tests
is one program with a result of each transform; where it cannot be made, each makes its own, so that a failure has the
transform's name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.judging import compare
from parity_tests.tests.inputs import TREES, Arrays, axis, flat, random_inputs
from parity_tests.tests.transforms.tables import Elsewhere, Exemptions, cells
from parity_tests.tests.transforms.test_sharded_steps_jax import decoders
from parity_tests.tests.transforms.test_sharding_jax import MESHES, layers, others
from parity_tests.tests.witness import bounded, cotangent, layer_of, weights_of

TRANSFORMS: dict[str, str] = {
    "jit": "`nnx.jit`",
    "grad": "`jax.grad` for inputs and parameters",
    "vmap": "`jax.vmap` over batch rows",
    "remat": "`nnx.remat`: outputs and gradients",
    "lax.scan": "`jax.lax.scan` over the stacked parameters of two layers",
    "nnx.scan": "`nnx.scan` over two stacked layers",
    "nnx.vmap": "`nnx.vmap` of two stacked layers side by side",
    "eval_shape": "`nnx.eval_shape` of the constructor, `jax.eval_shape` of a call",
    "jax.export": "`jax.export`, and the call of what it makes",
    "shard_map": "`jax.shard_map`, batch rows on a mesh's axis: outputs and gradients",
    "mesh, Auto": (
        "eight devices, batch and heads sharded: the only communication is one all-reduce after the output projection "
        "(and booleans: for blocks where a pattern has arrays, `segments`, `longformer`, `prefix`; for whether a row "
        "of `entmax_attention` needs another step); `talking_heads` sums the mixed heads, too, and the heads of "
        "`block_sparse`, which are rows of its kernel, move"
    ),
    "mesh, Explicit": (
        "the same with explicit axes, and the result's sharding; arrays move for the gradients of `shaw` and `mamba2`"
    ),
    "mesh, batch alone": (
        "the batch sharded and nothing else, in both kinds of meshes: nothing moves but sums of the gradients of "
        "parameters (and the booleans of `entmax_attention`; with explicit axes, arrays for the gradients of "
        "`shaw` and `seq2seq`)"
    ),
    "mesh, steps": (
        "steps of decoding with batch and heads sharded, and the cache as its keys or states, in both kinds of "
        "meshes: one all-reduce after the output projection (and the booleans of `entmax_attention`; "
        "`talking_heads` and `block_sparse` as above), and the cache stays where it is"
    ),
    "nnx.tabulate": "`nnx.tabulate`, and the layer works afterwards",
    "nnx.view": "`nnx.view` with another mode, sharing parameters",
}
EXEMPT: Exemptions = {}
SHARDING = "parity_tests/tests/transforms/test_sharding_jax.py"
ELSEWHERE: Elsewhere = {f"mesh, {mesh}": (SHARDING, tuple(sorted((*layers(), *others())))) for mesh in MESHES}
ELSEWHERE["mesh, batch alone"] = SHARDING, contract.variants()
ELSEWHERE["mesh, steps"] = "parity_tests/tests/transforms/test_sharded_steps_jax.py", decoders()

JAX = TREES["jax"]
EVERY_LAYER = nnx.StateAxes({nnx.Param: 0, ...: None})


@dataclass(frozen=True)
class Work:
    """A call of two layers of one config, with every argument and few positions.

    Attributes:
        graph, rest: what `nnx.split` gives of a layer beside its parameters.
        stacked: the parameters of both.
        joined: the name of the input that may be what the layer before returns; None if none may.
    """

    config: Config
    inputs: Arrays
    params: tuple[Arrays, Arrays]
    graph: Any
    rest: Any
    stacked: Any
    joined: str | None

    def layer(self) -> Any:
        """The first one."""
        return nnx.merge(self.graph, self.own(), self.rest, copy=True)

    def own(self) -> Any:
        """Its parameters."""
        return jax.tree.map(lambda x: x[0], self.stacked)

    def both(self) -> Any:
        """Both as one."""
        return nnx.merge(self.graph, self.stacked, self.rest, copy=True)

    def call(self, params: Any, given: dict[str, Any]) -> list[Any]:
        return flat(nnx.merge(self.graph, params, self.rest, copy=True)(**given))

    def arrays(self) -> dict[str, Any]:
        return JAX.arrays(self.inputs)

    def with_first(self, x: Any) -> dict[str, Any]:
        """The inputs, with what the layer before returns."""
        return self.arrays() | ({self.joined: x} if self.joined else {})

    def bounded(self, layer: int = 0, others: Arrays | None = None) -> dict[str, Any]:
        """The reference's outputs and gradients, with bounds."""
        return bounded(self.config, self.inputs | (others or {}), self.params[layer])

    def differentiated(self, outputs: list[Any]) -> list[Any]:
        """The outputs whose gradients the reference gives: the first, and a state that is returned."""
        return outputs[: 2 if self.config.second_output() else 1]


@cache
def work(variant: str, example: str | None = None) -> Work:
    """Of an example, by default the first."""
    examples = contract.examples(variant)
    config = examples[next(iter(examples)) if example is None else example]
    inputs, params = random_inputs(config, "full", t=3, s=4), (weights_of(config), weights_of(config, seed=1))
    layers = [layer_of(JAX, config, one) for one in params]
    graph, _, rest = nnx.split(layers[0], nnx.Param, ...)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(nnx.state(layer, nnx.Param) for layer in layers))
    name, x = next(iter(inputs.items()))
    y = flat(jax.eval_shape(lambda given: layers[0](**given), JAX.arrays(inputs)))[0]
    return Work(
        config, inputs, params, graph, rest, stacked, name if (y.shape, y.dtype) == (x.shape, x.dtype) else None
    )


def named(outputs: list[Any]) -> dict[str, Any]:
    return {"y" if i == 0 else f"out{i}": x for i, x in enumerate(outputs)}


def gradients(todo: Work, call: Callable[..., list[Any]]) -> dict[str, Any]:
    """Outputs and gradients of `call(params, inputs)`."""
    params = todo.own()
    floats = {name: x for name, x in todo.arrays().items() if jnp.issubdtype(x.dtype, jnp.floating)}

    def loss(params: Any, floats: Any) -> Any:
        outputs = call(params, todo.arrays() | floats)
        dys = [cotangent(x.shape) for x in todo.differentiated(outputs)]
        return sum(jnp.sum(x * dy) for x, dy in zip(outputs, dys, strict=False)), outputs

    (own, given), outputs = jax.grad(loss, (0, 1), has_aux=True)(params, floats)
    own = {".".join(map(str, path)): x[...] for path, x in nnx.to_flat_state(own)}
    return named(outputs) | {f"d{name}": x for name, x in (own | given).items()}


def beyond(got: dict[str, Any], want: dict[str, Any]) -> dict[str, float]:
    """Error/bound of what leaves its bound."""
    ratios = {name: compare(np.asarray(x), want[name])["ratio"] for name, x in got.items()}
    return {name: ratio for name, ratio in ratios.items() if not ratio <= 1}


# Programs -------------------------------------------------------------------------------------------------------------


def by_rows(todo: Work) -> Any:
    axes = {name: axis(todo.config, name, "b") or 0 for name in todo.inputs}
    params = todo.own()

    def one(row: dict[str, Any]) -> list[Any]:
        return todo.call(params, {name: jnp.expand_dims(x, axes[name]) for name, x in row.items()})

    return jax.vmap(one, in_axes=(axes,))(todo.arrays())


def over_layers(todo: Work) -> Any:
    def layer(x: Any, params: Any) -> Any:
        outputs = todo.call(params, todo.with_first(x))
        return (outputs[0] if todo.joined else x), outputs

    return jax.lax.scan(layer, next(iter(todo.arrays().values())), todo.stacked, length=2)[1]


def over_modules(todo: Work) -> Any:
    def layer(module: Any, x: Any) -> Any:
        outputs = flat(module(**todo.with_first(x)))
        return (outputs[0] if todo.joined else x), outputs

    run = nnx.scan(layer, in_axes=(EVERY_LAYER, nnx.Carry), out_axes=(nnx.Carry, 0), length=2)
    return run(todo.both(), next(iter(todo.arrays().values())))[1]


def side_by_side(todo: Work) -> Any:
    run = nnx.vmap(lambda module, given: flat(module(**given)), in_axes=(EVERY_LAYER, None), axis_size=2)
    return run(todo.both(), todo.arrays())


def rematted(todo: Work) -> Any:
    call = nnx.remat(lambda module, given: flat(module(**given)))
    return gradients(todo, lambda params, given: call(nnx.merge(todo.graph, params, todo.rest, copy=True), given))


def exported(todo: Work) -> Any:
    own, arrays = todo.own(), todo.arrays()
    leaves, tree = jax.tree.flatten(own)

    def call(leaves: Any, given: Any) -> list[Any]:
        return todo.call(jax.tree.unflatten(tree, leaves), given)

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (leaves, arrays))
    outputs: Any = jax.export.export(jax.jit(call))(*shapes).call(leaves, arrays)
    return named(outputs)


def on_a_mesh(todo: Work) -> Any:
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))

    def spec(name: str) -> PartitionSpec:
        return PartitionSpec(*("rows" if x == "b" else None for x in todo.config.arguments()[name].axes.split()))

    specs = {name: spec(name) for name in todo.inputs}

    def twice(name: str, x: Any) -> Any:
        letters = todo.config.arguments()[name].axes.split()
        shape = tuple(n * (1 + (letter == "b" and n > 1)) for n, letter in zip(x.shape, letters, strict=True))
        return jax.ShapeDtypeStruct(shape, x.dtype)

    def call(params: Any, given: Any) -> Any:
        # The axes of rows are those that are longer for more rows.
        more = {name: twice(name, x) for name, x in given.items()}
        shapes, longer = (jax.eval_shape(todo.call, params, x) for x in (given, more))
        out = [
            PartitionSpec(*("rows" if n != m else None for n, m in zip(x.shape, y.shape, strict=True)))
            for x, y in zip(shapes, longer, strict=True)
        ]
        return jax.shard_map(todo.call, mesh=mesh, in_specs=(PartitionSpec(), specs), out_specs=out)(params, given)

    return gradients(todo, call)


PROGRAMS: dict[str, Callable[[Work], Any]] = {
    "jit": lambda todo: named(nnx.jit(lambda layer, given: flat(layer(**given)))(todo.layer(), todo.arrays())),
    "grad": lambda todo: gradients(todo, todo.call),
    "vmap": by_rows,
    "remat": rematted,
    "lax.scan": over_layers,
    "nnx.scan": over_modules,
    "nnx.vmap": side_by_side,
    "jax.export": exported,
    "shard_map": on_a_mesh,
}


@cache
def everything(variant: str) -> dict[str, Any]:
    """The results of all programs, compiled as one; none if that fails."""
    todo = work(variant)
    names = [name for name in PROGRAMS if (name, variant) not in EXEMPT]
    try:
        return jax.jit(lambda: {name: PROGRAMS[name](todo) for name in names})()
    except Exception:  # each then fails by itself, or not
        return {}


def result(transform: str, variant: str) -> Any:
    found = everything(variant)
    return found[transform] if found else jax.jit(lambda: PROGRAMS[transform](work(variant)))()


@cells(EXEMPT, "jit", "grad", "remat", "jax.export", "shard_map")
def test_one_layer(transform: str, variant: str) -> None:
    assert not beyond(result(transform, variant), work(variant).bounded())


def rows_beyond(todo: Work, outputs: dict[str, Any]) -> list[dict[str, float]]:
    """Error/bound of what leaves its bound, by batch rows."""
    found: list[dict[str, float]] = []
    for i in range(len(outputs["y"])):
        row = {name: np.take(x, [i], axis(todo.config, name, "b") or 0) for name, x in todo.inputs.items()}
        found.append(beyond({name: x[i] for name, x in outputs.items()}, todo.bounded(0, row)))
    return [ratios for ratios in found if ratios]


@cells(EXEMPT, "vmap")
def test_rows(transform: str, variant: str) -> None:
    assert not rows_beyond(work(variant), named(result(transform, variant)))


OTHERS = [(variant, example) for variant in contract.variants() for example in list(contract.examples(variant))[1:]]


@pytest.mark.parametrize(("variant", "example"), OTHERS)
def test_every_other_example(variant: str, example: str) -> None:
    """In one of a variant's examples each of its fields has another value than by default."""
    todo, names = work(variant, example), ("grad", "vmap", "jax.export", "shard_map")
    found = jax.jit(lambda: {name: PROGRAMS[name](todo) for name in names})()
    assert not rows_beyond(todo, named(found.pop("vmap")))
    for transform, outputs in found.items():
        assert not beyond(outputs, todo.bounded()), transform


@cells(EXEMPT, "lax.scan", "nnx.scan", "nnx.vmap")
def test_two_layers(transform: str, variant: str) -> None:
    todo, outputs = work(variant), named(result(transform, variant))
    joined = todo.joined if transform != "nnx.vmap" else None
    assert not beyond({name: x[0] for name, x in outputs.items()}, todo.bounded())
    more = {joined: np.asarray(outputs["y"][0])} if joined else {}
    assert not beyond({name: x[1] for name, x in outputs.items()}, todo.bounded(1, more))


# Without numbers, and without a program -------------------------------------------------------------------------------


@cells(EXEMPT, "eval_shape")
def test_eval_shape(transform: str, variant: str) -> None:
    todo = work(variant)
    cls = getattr(JAX.package, todo.config.class_name)
    abstract = nnx.eval_shape(lambda: cls(todo.config, rngs=nnx.Rngs(0), param_dtype="float64"))
    params = {".".join(map(str, path)): x.get_value() for path, x in nnx.to_flat_state(nnx.state(abstract, nnx.Param))}
    assert {name: x.shape for name, x in params.items()} == todo.config.shapes()
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in params.values())
    shapes = jax.eval_shape(lambda given: todo.layer()(**given), todo.arrays())
    want = todo.bounded()
    assert {name: x.shape for name, x in named(flat(shapes)).items()} == {
        name: want[name].shape for name in named(flat(shapes))
    }


@cells(EXEMPT, "nnx.tabulate")
def test_tabulate(transform: str, variant: str) -> None:
    todo = work(variant)
    layer = layer_of(JAX, todo.config, todo.params[0])
    table = nnx.tabulate(layer, **todo.arrays())
    count = sum(x.size for x in jax.tree.leaves(nnx.state(layer)))  # random numbers for dropout have a key and a count
    assert todo.config.class_name in table
    assert f"Total Parameters: {count:,}" in table
    assert jax.eval_shape(lambda given: layer(**given), todo.arrays()) is not None


@cells(EXEMPT, "nnx.view")
def test_view(transform: str, variant: str) -> None:
    layer: Any = layer_of(JAX, work(variant).config, work(variant).params[0])
    training: Any = nnx.view(layer, deterministic=False)
    assert layer.deterministic and not training.deterministic
    modes = [getattr(x, "deterministic", False) for _, x in nnx.iter_modules(training)]
    assert modes and not any(modes)
    shared = zip(
        jax.tree.leaves(nnx.state(layer, nnx.Param)), jax.tree.leaves(nnx.state(training, nnx.Param)), strict=True
    )
    assert all(x is y for x, y in shared)
